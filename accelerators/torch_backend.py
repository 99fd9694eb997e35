"""Data of one accelerator. ``torch_accelerator`` derives all behavior from it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.accelerators import autoload
from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import FLOATING_DTYPES
from conformance.accelerators.claims import COMPILED_FOR_HOST, TORCH_BASE, Capabilities, dtypes_in, lacks
from conformance.accelerators.interface import Accelerator, TorchModule
from conformance.accelerators.memory import AllocatorMemory, Memory
from conformance.accelerators.randomness import DeviceGenerators, Randomness
from conformance.accelerators.ranges import Ranges
from conformance.base.errors import ConformanceError, SetupError

if TYPE_CHECKING:
    import torch

#: (major, minor) of a device generation, as ``torch.<name>.get_device_capability`` returns them.
Generation = tuple[int, int]


@dataclass
class CompileBackend:
    """The compile backend that ``set_compile_backend`` chose: the only mutable state of an accelerator."""

    name: str


@dataclass(frozen=True, kw_only=True, repr=False)
class TorchBackend(Accelerator):
    """Description of one accelerator. Creating it imports neither torch nor a vendor's package, and touches no device.

    ``module`` is the path of the torch module, by default ``torch.<name>``. ``package`` is the vendor's package; it is
    empty if torch itself drives the device. ``collectives`` maps ``sys.platform`` to the communication backend.
    ``needs_generation`` gives the first device generation that supports a dtype (or ``triton``). ``impersonates`` lists
    the accelerators whose torch modules this vendor's package replaces.
    """

    name: str
    vendor: str
    module: str = ""
    package: str = ""
    device_type: str = ""
    collectives: Mapping[str, str] = field(default_factory=dict)
    #: The function that compiles what ``package`` loads, as ``module:NAME``. It has a time limit of its own.
    builds: str = ""
    visible_devices: str = ""
    exports: tuple[str, ...] = ()
    compile_backend: str = "inductor"
    capabilities: Capabilities = TORCH_BASE
    impersonates: frozenset[str] = frozenset()
    listing: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    needs_generation: Mapping[str, Generation] = field(default_factory=dict)
    #: Generations on which a Triton grouped matrix product is faster than torch's: from the first, below the second.
    triton_grouped_mm: tuple[Generation, Generation] | None = None

    #: The execution flags. None declares nothing, and the method then returns False.
    synchronized: bool | None = None
    host_timers: bool | None = None
    ordered: bool | None = None
    backpressure: bool | None = None
    streams: bool = True
    events: bool = True
    graph: str = ""
    triton: bool = False
    pins: bool = True
    pin_alignment: int = 1
    #: Names of the function that returns the runtime module, and of its functions that register and unregister memory.
    host_registration: tuple[str, str, str] | None = None
    range_tool: str = ""
    #: Settings of torch, by dotted path, under which the device has the precision that it claims. ``load`` makes them.
    settings: Mapping[str, object] = field(default_factory=dict)
    #: The mode in which bits do not depend on the surrounding: settings of torch or of the vendor's package, by dotted
    #: path. Cases of area invariance make them, and restore what was before. Empty where no mode is needed.
    invariant_mode: Mapping[str, object] = field(default_factory=dict)
    #: The vendor's own kernels: the ``VendorLibrary`` at ``module:NAME``. Empty for libraries that this project knows.
    kernel_library: str = ""
    memory: Memory = field(default_factory=AllocatorMemory, compare=False)
    randomness: Randomness = field(default_factory=DeviceGenerators, compare=False)
    is_host: bool = False
    #: The devices exist inside the process: every worker has its own, and detection never chooses them.
    simulated: bool = False

    _compile: CompileBackend = field(default_factory=lambda: CompileBackend(""), compare=False)
    _ranges: Ranges = field(default_factory=Ranges, compare=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def _name(self) -> str:
        """Return the accelerator's name under the attribute that DeepSpeed's accelerators have."""
        return self.name

    @property
    def _type(self) -> str:
        """Return the device type that torch uses for it."""
        return self.device_type or self.name

    @property
    def _module_path(self) -> str:
        return self.module or f"torch.{self.name}"

    @property
    def _module(self) -> Any:
        """Return a view of ``torch.<name>``, looked up at every use."""
        return TorchModule(find_module(self._module_path), self._module_path)

    @property
    def _torch(self) -> Any:
        import torch

        return torch

    @property
    def statements(self) -> Capabilities:
        """Return all claims: the capabilities, the execution flags that are set, and the kernels for the host."""
        flags = (
            (can.SYNCHRONOUS, self.synchronized, "calls return before the work is done"),
            (can.HOST_TIMERS, self.host_timers, "events measure the device's time"),
            (can.ORDERED, self.ordered, "streams run side by side unless they wait for each other"),
            (can.BACKPRESSURE, self.backpressure, "queueing does not wait for memory"),
        )
        claims = (frozenset({flag}) if given else lacks(flag, why) for flag, given, why in flags if given is not None)
        return self.capabilities.union(COMPILED_FOR_HOST, *claims)

    def _declared_floating(self) -> tuple[str, ...]:
        return tuple(name for name in dtypes_in(self.capabilities) if name in FLOATING_DTYPES)

    def _dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(self._torch, name)
        return dtype

    # --- software -----------------------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Raise SetupError if the vendor's software is not installed. Imports nothing."""
        for package in filter(None, ("torch", self.package)):
            if not is_installed(package):
                raise SetupError(
                    f"accelerator '{self.name}' needs the package {package}, which is not installed here.\n"
                    f"  install {self.vendor if package != 'torch' else 'PyTorch'}'s build of {package} for this "
                    f"Python ({sys.version_info.major}.{sys.version_info.minor}), or choose another accelerator"
                )

    def build(self) -> None:
        """Compile what the package loads, if it names a function for that. Raises SetupError if that fails."""
        module, _, name = self.builds.partition(":")
        if not module:
            return
        try:
            getattr(importlib.import_module(module), name)()
        except ConformanceError:  # its message already has a next step
            raise
        except Exception as error:
            raise SetupError(f"accelerator '{self.name}' cannot be built: {autoload.describe(error)}") from error

    def load(self) -> TorchBackend:
        """Import torch and the vendor's package; raise SetupError if no device answers."""
        self.preflight()
        autoload.load_vendor(self.package or "torch", self.name)
        if not self.is_available():
            raise SetupError(
                f"accelerator '{self.name}' finds no device: {self._module_path}.is_available() is False here.\n"
                f"  check the driver{self._listing_hint()}, and that torch was built for this device"
            )
        self._apply_settings()
        return self

    def _apply_settings(self) -> None:
        """Change the settings of torch; one that the installed torch does not have is left out."""
        # PyTorch's operator database forbids assignments to some settings outside of this context.
        unlocked = getattr(self._torch.backends, "__allow_nonbracketed_mutation", nullcontext)
        for path, value in self.settings.items():
            owner, _, name = path.rpartition(".")
            module = find_module(owner)
            if hasattr(module, name):
                with unlocked():
                    setattr(module, name, value)

    def _listing_hint(self) -> str:
        return f" ({' '.join(self.listing)})" if self.listing else ""

    def has_device_files(self) -> bool:
        """Return whether the device's files exist; True for devices that need none."""
        return all(Path(file).exists() for file in self.device_files)


def find_module(path: str) -> Any:
    """Return the module of a dotted path. A vendor's ``torch.<name>`` may be only an attribute, not importable."""
    first, *rest = path.split(".")
    module: Any = importlib.import_module(first)
    for index, name in enumerate(rest):
        if not hasattr(module, name):
            try:
                importlib.import_module(".".join([first, *rest[: index + 1]]))
            except ImportError as error:
                said = f"{path} does not exist in the installed torch: {autoload.describe(error)}"
                hint = "If another module has the device's functions, write a declaration that names it as `module`"
                raise SetupError(f"{said}. {hint}: docs/new-accelerator.md.") from None
        module = getattr(module, name)
    return module


def is_installed(package: str) -> bool:
    """Return whether the top-level package can be found. Imports nothing."""
    top = package.partition(".")[0]
    if sys.modules.get(top) is not None:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:
        return False

"""The four sources of an accelerator: a backend, an object, DeepSpeed, and a device type of torch."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.accelerators import autoload
from conformance.accelerators.backends import builtin, builtin_names, declaration_beside
from conformance.accelerators.capabilities import DEVICE_INDEX, FLOATING_DTYPES, VOCABULARY, Cell
from conformance.accelerators.claims import declaration_of, dtypes
from conformance.accelerators.declaration import Claim, ClaimSource, Declaration, State
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.derivation import from_methods
from conformance.accelerators.interface import MEMBERS
from conformance.accelerators.proxy import has_member, members_of
from conformance.accelerators.spec import AcceleratorSpec
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.accelerators.torch_backend import is_installed
from conformance.base.errors import DeclarationError, SetupError, UnknownName, UsageError

#: Memory of a worker process: torch, its operator database, and the tensors of one case.
_BYTES_PER_WORKER = 2 << 30
_MOST_WORKERS = 16


@dataclass(frozen=True)
class BackendSpec(AcceleratorSpec):
    """A ``TorchAccelerator``: built in, from an entry point, or an object in a module."""

    accelerator: TorchAccelerator
    file: Path | None = None

    def _declared(self) -> Declaration:
        return _with_file(declaration_of(self.accelerator.statements), self.file)

    @property
    def declaration_sources(self) -> list[str]:
        if self.text in builtin_names():
            return [f"built-in accelerator {self.text}", *([self.file.name] if self.file else [])]
        return ["capabilities", _named_file(self.file)]

    def preflight(self) -> None:
        self.accelerator.preflight()

    def build(self) -> None:
        self.accelerator.build()

    def _loaded(self) -> TorchAccelerator:
        self.accelerator.load()
        _refuse_impersonated(self.accelerator)
        return self.accelerator

    def unloaded(self) -> TorchAccelerator:
        return self.accelerator

    @property
    def default_workers(self) -> int:
        return _workers_for(self.accelerator)


def _refuse_impersonated(accelerator: TorchAccelerator) -> None:
    """Raise SetupError if a loaded package of another vendor answers for this accelerator's torch module."""
    for other in map(builtin, builtin_names()):
        if accelerator.name in other.impersonates and sys.modules.get(other.package) is not None:
            raise SetupError(
                f"accelerator '{accelerator.name}' cannot be used: {other.package} is loaded in this process and "
                f"answers for it.\n"
                f"  use --accelerator={other.name}, or do not import {other.package} here"
            )


def builtin_spec(name: str) -> BackendSpec:
    """Return the spec of the built-in backend of that name."""
    return BackendSpec(name, name, builtin(name), declaration_beside(name))


@dataclass(frozen=True)
class ObjectSpec(AcceleratorSpec):
    """A class, or an object, with the methods of a DeepSpeed accelerator. It needs no common base class."""

    candidate: Any
    file: Path | None = None

    def _declared(self) -> Declaration:
        """Return the claims of the object's ``capabilities`` and of the file beside it."""
        declared = getattr(self.candidate, "capabilities", None)
        try:
            own = declaration_of(() if declared is None else declared)
        except DeclarationError as error:
            raise DeclarationError(f"{self.text}: {error}") from None
        return _with_file(own, self.file)

    @property
    def declaration_sources(self) -> list[str]:
        declared = getattr(self.candidate, "capabilities", None) is not None
        return ["capabilities" if declared else "no capabilities", _named_file(self.file)]

    def preflight(self) -> None:
        """Do nothing: the module is already imported, and no other need is known."""

    def _loaded(self) -> Any:
        """Return the object, loaded, after a check that it has the interface."""
        accelerator = instantiate(self.candidate, self.text)
        if isinstance(accelerator, TorchAccelerator):
            accelerator.load()
        require_accelerator(accelerator, self.text)
        return accelerator

    def unloaded(self) -> Any:
        return instantiate(self.candidate, self.text)


@dataclass(frozen=True)
class DeepSpeedSpec(AcceleratorSpec):
    """DeepSpeed's own accelerator of a name. The built-in backend of the same name gives the claims about the device.

    Claims and denials that describe the backend's own class are left out, and an answer of DeepSpeed's class that
    denies a capability wins: a class is judged by what it promises itself.
    """

    kind: str

    @property
    def _backend(self) -> BackendSpec | None:
        return builtin_spec(self.kind) if self.kind in builtin_names() else None

    def _declared(self) -> Declaration:
        claims = self._backend.static_declaration.cells.items() if self._backend else ()
        return Declaration.of((cell, claim) for cell, claim in claims if not _describes_the_class(cell, claim))

    def declaration(self, accelerator: Any, file: Path | None = None) -> Declaration:
        """Return the claims of DeepSpeed's class, of the built-in backend unless the class denies, and of ``file``."""
        answers = from_methods(accelerator)
        denied = {cell for cell, claim in answers.cells.items() if claim.state is State.UNSUPPORTED}
        claims = self.static_declaration.cells.items()
        taken_over = Declaration.of((cell, claim) for cell, claim in claims if cell not in denied)
        merged = answers.overridden_by(taken_over)
        return merged.overridden_by(read_declaration(file, ClaimSource.FILE)) if file else merged

    def preflight(self) -> None:
        """Raise an error if DeepSpeed, its accelerator or the vendor's package is missing, without a device."""
        if not is_installed("deepspeed"):
            raise SetupError(
                f"'deepspeed:{self.kind}' needs the package deepspeed, which is not installed here.\n"
                "  install it: pip install deepspeed"
            )
        known = deepspeed_names()
        if self.kind not in known:
            raise UnknownName("DeepSpeed accelerator", self.kind, known)
        if self._backend:
            self._backend.preflight()

    def _loaded(self) -> Any:
        """Return DeepSpeed's accelerator, with the vendor's package loaded."""
        self.preflight()
        if self._backend:
            # DeepSpeed's accelerator needs the same vendor package and the same device as the backend.
            self._backend.load()
        return self.unloaded()

    def unloaded(self) -> Any:
        """Return DeepSpeed's accelerator without a load of the vendor's package."""
        autoload.disable()
        # Without this variable, importing deepspeed detects whatever device this machine has.
        os.environ["DS_ACCELERATOR"] = self.kind
        label = f"deepspeed:{self.kind}"
        module = import_module(f"deepspeed.accelerator.{self.kind}_accelerator", label)
        return instantiate(getattr(module, f"{self.kind.upper()}_Accelerator"), label)

    @property
    def default_workers(self) -> int:
        return self._backend.default_workers if self._backend else 1


def _describes_the_class(cell: Cell, claim: Claim) -> bool:
    """Return whether a claim of a built-in backend tells something about its class, and nothing about the device."""
    if cell == DEVICE_INDEX.cell:
        return True  # how a class names its devices; DeepSpeed's interface promises no index
    # A denied operator has to stay denied: without its denial, a pattern would claim it.
    return claim.state is State.UNSUPPORTED and cell.subject in VOCABULARY


@dataclass(frozen=True)
class TorchTypeSpec(AcceleratorSpec):
    """A device type that torch knows. It is driven by the functions of its torch module."""

    type: str

    @functools.cached_property
    def _accelerator(self) -> TorchAccelerator:
        # A backend with a device_type of its own is not known to torch under the backend's name.
        if self.type in builtin_names() and not builtin(self.type).device_type:
            return builtin(self.type)
        return TorchAccelerator(name=self.type, vendor="the device's vendor", capabilities=frozenset())

    def _declared(self) -> Declaration:
        if self.type in builtin_names():
            return builtin_spec(self.type).static_declaration
        return Declaration()

    @property
    def declaration_sources(self) -> list[str]:
        return [f"built-in accelerator {self.type}"] if self.type in builtin_names() else super().declaration_sources

    def preflight(self) -> None:
        self._require_known()
        self._accelerator.preflight()

    def _require_known(self) -> None:
        if self.type not in torch_types() and not packages_of(self.type):
            raise UnknownName("torch device type", self.type, torch_types(), _no_package(self.type))

    def _loaded(self) -> Any:
        """Return the accelerator, after the vendor's packages that torch would autoload."""
        self.preflight()
        packages = packages_of(self.type)
        for package in packages:
            autoload.load_vendor(package, self.type)
        _require_type(self.type, packages)
        self._accelerator.load()
        return self._accelerator if self.type in builtin_names() else as_found(self._accelerator)

    def unloaded(self) -> Any:
        """Return the accelerator without a load. Raise UnknownName for a device type that nothing registers."""
        self._require_known()
        return self._accelerator

    @property
    def default_workers(self) -> int:
        return _workers_for(self._accelerator)


def as_found(accelerator: TorchAccelerator) -> TorchAccelerator:
    """Return a loaded accelerator that has streams, events, pinned memory and dtypes as far as its torch module does.

    Nobody has declared this device: what its module lacks is no broken promise.
    """
    import torch

    module = torch.get_device_module(accelerator.name)
    names = [name for name in FLOATING_DTYPES if _holds(accelerator.name, getattr(torch, name, None))]
    return replace(
        accelerator,
        streams=all(hasattr(module, name) for name in ("Stream", "current_stream", "stream")),
        events=hasattr(module, "Event"),
        pins=_pins(),
        capabilities=dtypes(*names) if names else frozenset(),
    )


def _holds(type: str, dtype: Any) -> bool:
    """Return whether the device keeps two numbers of a dtype."""
    import torch

    if dtype is None:
        return False
    try:
        given = torch.tensor([1.0, 2.0], dtype=dtype)
        return bool((given.to(type).cpu().float() == given.float()).all())
    except Exception:  # noqa: BLE001 - whatever a device raises for a dtype that it lacks
        return False


def _pins() -> bool:
    """Return whether memory of the host can be pinned for the device that torch has here."""
    import torch

    try:
        return bool(torch.ones(1).pin_memory().is_pinned())
    except Exception:  # noqa: BLE001 - as above
        return False


# --- torch device types ---------------------------------------------------------------------------------------------

#: The device types of torch itself that hold tensors; vendors add theirs through ``torch.backends`` entry points.
_TORCH_TYPES = ("cpu", "cuda", "hpu", "maia", "mps", "mtia", "xla", "xpu")
#: Names of packages that register a device type without an entry point.
_PACKAGE_NAMES = ("torch_{}", "torch{}", "{}_torch", "{}torch", "pytorch_{}", "{}")


def torch_types() -> list[str]:
    """Return the device types that torch knows here, also those that a vendor's entry point will register."""
    return sorted({*_TORCH_TYPES, *_renamed_type(), *(_type_of(p) for p in autoload.all_packages())})


def _renamed_type() -> set[str]:
    torch = sys.modules.get("torch")
    name = torch._C._get_privateuse1_backend_name() if torch else "privateuseone"
    return set() if name == "privateuseone" else {name}


def _type_of(package: str) -> str:
    return package.removeprefix("torch_")


def packages_of(type: str) -> list[str]:
    """Return the installed packages that register a device type, also one without an entry point. Nothing is imported.

    Without an entry point, the package is found by its name.
    """
    points = [package for package in autoload.all_packages() if _type_of(package) == type]
    return points or [name for name in _usual_names(type) if type not in _TORCH_TYPES and is_installed(name)][:1]


def _usual_names(type: str) -> list[str]:
    return [pattern.format(type) for pattern in _PACKAGE_NAMES]


def _no_package(type: str) -> str:
    """Return the next step for a type of which no package is known."""
    here = next((name for name in _usual_names(type) if Path(name, "__init__.py").is_file()), None)
    if here:
        return (
            f"the folder {here} is here, but it is not installed: pip install -e .\n"
            f'  or write a declaration with package="{here}", and name it as MODULE:OBJECT; see docs/new-accelerator.md'
        )
    return (
        f"no package of it is installed here: none has an entry point torch.backends for it, and none is named "
        f"{' or '.join(_usual_names(type))}\n"
        f'  if its package has another name, write a declaration with package="NAME"; see docs/new-accelerator.md'
    )


def _require_type(type: str, packages: list[str]) -> None:
    """Raise SetupError if torch does not know the type after its packages are loaded."""
    import torch

    try:
        torch.device(type)
    except RuntimeError as error:
        loaded = f"loading {' and '.join(packages)} does not register it" if packages else "no package registers it"
        raise SetupError(
            f"'torch:{type}' cannot be used: torch knows no device type '{type}', and {loaded}.\n"
            f"  torch says: {str(error).splitlines()[0][:200]}\n"
            '  if another package registers it, write a declaration with package="NAME"; see docs/new-accelerator.md'
        ) from None


# --- objects and classes --------------------------------------------------------------------------------------------


def import_module(path: str, label: str) -> Any:
    """Import a module that the user named. Every failure becomes one sentence with the inner exception."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(error.name + ".")):
            raise UsageError(
                f"'{label}' names the module {path}, which cannot be found.\n"
                f"  searched from {Path.cwd()}; check the spelling, or install the package that holds it"
            ) from None
        raise SetupError(_import_sentence(label, path, error)) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except DeclarationError as error:
        # The whole message: its later lines have the suggestions.
        raise DeclarationError(f"'{label}', in {path}: {error}") from error
    except BaseException as error:
        # A module that calls sys.exit() while it is imported must not end the run silently.
        raise SetupError(_import_sentence(label, path, error)) from error


def _import_sentence(label: str, path: str, error: BaseException) -> str:
    fact = f"'{label}' cannot be used: importing {path} fails: {autoload.describe(error)}"
    return f"{fact}\n  check: python -c 'import {path}'"


def check_candidate(candidate: Any, label: str) -> None:
    """Raise UsageError if the object cannot be an accelerator on any device."""
    if inspect.ismodule(candidate) or inspect.isroutine(candidate):
        kind = "a module" if inspect.ismodule(candidate) else "a function"
        raise UsageError(_no_accelerator(label, f"it is {kind}", "name a class or an object"))
    if isinstance(candidate, type):
        _check_constructor(candidate, label)
        # A class with __getattr__ may provide every member at run time.
        if not members_of(candidate) and not hasattr(candidate, "__getattr__"):
            raise UsageError(_no_accelerator(label, f"it has none of the {len(MEMBERS)} members of the interface"))
        return
    require_accelerator(candidate, label)


def _check_constructor(kind: type, label: str) -> None:
    """Raise ``UsageError`` if ``kind`` cannot be called without arguments."""
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        return  # a class implemented in C may have no signature
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(_no_accelerator(label, f"it cannot be built without arguments ({error})")) from None


def require_accelerator(candidate: Any, label: str) -> None:
    """Raise UsageError if the object cannot name its device. All other gaps become verdicts of cases."""
    if has_member(candidate, "device_name") or has_member(candidate, "current_device_name"):
        return
    count = len(members_of(candidate))
    raise UsageError(
        _no_accelerator(
            label, f"{type(candidate).__name__} has no device_name() (and {count} of {len(MEMBERS)} members)"
        )
    )


def _no_accelerator(label: str, fact: str, step: str = "") -> str:
    step = step or "an accelerator has the methods of DeepSpeedAccelerator; see docs/new-accelerator.md"
    return f"'{label}' is not an accelerator: {fact}.\n  {step}"


def instantiate(candidate: Any, label: str) -> Any:
    """Return an instance of a class, or an object unchanged. Abstract members do not prevent an instance."""
    if not isinstance(candidate, type):
        return candidate
    build: Callable[[], Any] = _without_abstract(candidate) if inspect.isabstract(candidate) else candidate
    try:
        return build()
    except (Exception, SystemExit) as error:  # a constructor that calls sys.exit() must not end the command silently
        raise SetupError(
            f"'{label}' cannot be used: building {candidate.__name__}() fails: {autoload.describe(error)}\n"
            f"  check: python -c 'from {candidate.__module__} import {candidate.__name__}; {candidate.__name__}()'"
        ) from error


def _without_abstract(kind: type) -> type:
    """Return a subclass that can be instantiated. Abstract members stay marked; the proxy reports them as missing."""
    complete = type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__})
    complete.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return complete


# --- facts about files and the host ---------------------------------------------------------------------------------


def file_beside(module: Any) -> Path | None:
    """Return ``<module>.toml`` or ``capabilities.toml`` in the module's folder, or None."""
    source = getattr(module, "__file__", None)
    if source is None:
        return None
    candidates = (Path(source).with_suffix(".toml"), Path(source).with_name("capabilities.toml"))
    return next((file for file in candidates if file.exists()), None)


def deepspeed_names() -> list[str]:
    """Return the accelerators of the installed DeepSpeed, read from its file names. Nothing is imported."""
    spec = importlib.util.find_spec("deepspeed")
    folders = spec.submodule_search_locations or [] if spec else []
    files = [file.name for folder in folders for file in Path(folder, "accelerator").glob("*_accelerator.py")]
    names = {re.sub(r"_accelerator\.py$", "", file) for file in files}
    return sorted(names - {"abstract", "real"})


def _workers_for(accelerator: TorchAccelerator) -> int:
    return host_workers() if accelerator.is_host or accelerator.simulated else 1


def host_workers() -> int:
    """Return how many workers fit this host: one for each core, as far as the memory suffices."""
    # A process may be limited to fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        # The size of the memory is unknown here, for instance on Windows.
        return max(1, min(cores, 4))
    return max(1, min(cores, memory // _BYTES_PER_WORKER, _MOST_WORKERS))


def _named_file(file: Path | None) -> str:
    return file.name if file else "no .toml file beside its module"


def _with_file(own: Declaration, file: Path | None) -> Declaration:
    return own.overridden_by(read_declaration(file, ClaimSource.CAPABILITIES)) if file else own

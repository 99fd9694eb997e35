"""The four places a subject can come from."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.accelerators import autoload
from conformance.accelerators.backends import builtin, builtin_names, declaration_beside
from conformance.accelerators.claims import declaration_of
from conformance.accelerators.declaration import Declaration, Source
from conformance.accelerators.declaration_file import read_declaration
from conformance.accelerators.interface import MEMBERS
from conformance.accelerators.live import has_member, members_of
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.accelerators.torch_backend import is_installed
from conformance.errors import DeclarationError, SetupError, UnknownName, UsageError

#: A worker process with torch, its operator database and one case's tensors.
_BYTES_PER_WORKER = 2 << 30
_MOST_WORKERS = 16


@dataclass(frozen=True)
class DeclaredOrigin:
    """A ``TorchAccelerator``: built in, an entry point's, or an object in a module."""

    accelerator: TorchAccelerator
    file: Path | None = None

    def declaration(self) -> Declaration:
        return _with_file(declaration_of(self.accelerator.statements), self.file)

    def preflight(self) -> None:
        self.accelerator.preflight()

    def load(self) -> TorchAccelerator:
        self.accelerator.load()
        _refuse_impersonated(self.accelerator)
        return self.accelerator

    def unloaded(self) -> TorchAccelerator:
        return self.accelerator

    @property
    def default_workers(self) -> int:
        return host_workers() if self.accelerator.is_host or self.accelerator.simulated else 1


def _refuse_impersonated(accelerator: TorchAccelerator) -> None:
    """A loaded package that answers for this accelerator's module: the device that says it is there is another."""
    for other in map(builtin, builtin_names()):
        if accelerator.name in other.impersonates and sys.modules.get(other.package) is not None:
            raise SetupError(
                f"accelerator '{accelerator.name}' cannot be used: {other.package} is loaded in this process and "
                f"answers for it.\n"
                f"  use --accelerator={other.name}, or do not import {other.package} here"
            )


def builtin_origin(name: str) -> DeclaredOrigin:
    return DeclaredOrigin(builtin(name), declaration_beside(name))


@dataclass(frozen=True)
class ObjectOrigin:
    """A class, or an object, with the methods of a DeepSpeed accelerator. No base class is asked for."""

    label: str
    thing: Any
    file: Path | None = None

    def declaration(self) -> Declaration:
        declared = getattr(self.thing, "capabilities", None)
        try:
            own = declaration_of(() if declared is None else declared)
        except DeclarationError as error:
            raise DeclarationError(f"{self.label}: {error}") from None
        return _with_file(own, self.file)

    def preflight(self) -> None:
        """Nothing more is known to be needed: the module is already imported."""

    def load(self) -> Any:
        accelerator = instantiate(self.thing, self.label)
        if isinstance(accelerator, TorchAccelerator):
            accelerator.load()
        require_accelerator(accelerator, self.label)
        return accelerator

    def unloaded(self) -> Any:
        return instantiate(self.thing, self.label)

    default_workers = 1


@dataclass(frozen=True)
class DeepSpeedOrigin:
    """DeepSpeed's own accelerator of that name, judged by what ours of that name declares."""

    name: str

    @property
    def _ours(self) -> DeclaredOrigin | None:
        return builtin_origin(self.name) if self.name in builtin_names() else None

    def declaration(self) -> Declaration:
        return self._ours.declaration() if self._ours else Declaration()

    def preflight(self) -> None:
        if not is_installed("deepspeed"):
            raise SetupError(
                f"'deepspeed:{self.name}' needs the package deepspeed, which is not installed here.\n"
                "  install it: pip install deepspeed"
            )
        known = deepspeed_names()
        if self.name not in known:
            raise UnknownName("DeepSpeed accelerator", self.name, known)
        if self._ours:
            self._ours.preflight()

    def load(self) -> Any:
        self.preflight()
        if self._ours:
            # The vendor's package, and whether a device answers, are the same question for both.
            self._ours.load()
        return self._instance()

    def unloaded(self) -> Any:
        return self._instance()

    def _instance(self) -> Any:
        autoload.disable()
        # Without it, importing deepspeed looks for whatever device this machine has.
        os.environ["DS_ACCELERATOR"] = self.name
        label = f"deepspeed:{self.name}"
        module = import_module(f"deepspeed.accelerator.{self.name}_accelerator", label)
        return instantiate(getattr(module, f"{self.name.upper()}_Accelerator"), label)

    @property
    def default_workers(self) -> int:
        return self._ours.default_workers if self._ours else 1


@dataclass(frozen=True)
class TorchOrigin:
    """A device type that torch knows, driven by what its module offers."""

    type: str

    @functools.cached_property
    def _accelerator(self) -> TorchAccelerator:
        if self.type in builtin_names() and not builtin(self.type).device_type:
            return builtin(self.type)
        return TorchAccelerator(name=self.type, vendor="the device's vendor", capabilities=frozenset())

    def declaration(self) -> Declaration:
        if self.type in builtin_names():
            return builtin_origin(self.type).declaration()
        return Declaration()

    def preflight(self) -> None:
        if self.type not in torch_types():
            raise UnknownName("torch device type", self.type, torch_types(), "is its vendor's package installed here?")
        DeclaredOrigin(self._accelerator).preflight()

    def load(self) -> Any:
        self.preflight()
        for point in _torch_entry_points(self.type):
            autoload.load_vendor(point, self.type)
        self._accelerator.load()
        return self._accelerator

    def unloaded(self) -> Any:
        return self._accelerator

    @property
    def default_workers(self) -> int:
        return DeclaredOrigin(self._accelerator).default_workers


# --- torch device types ---------------------------------------------------------------------------------------------

#: The device types of torch itself that hold tensors; vendors add theirs through ``torch.backends`` entry points.
_TORCH_TYPES = ("cpu", "cuda", "hpu", "maia", "mps", "mtia", "xla", "xpu")


def torch_types() -> list[str]:
    """The device types torch knows here, or will once a vendor's entry point is loaded."""
    return sorted({*_TORCH_TYPES, *_renamed_type(), *(_type_of(p) for p in autoload.all_packages())})


def _renamed_type() -> set[str]:
    torch = sys.modules.get("torch")
    name = torch._C._get_privateuse1_backend_name() if torch else "privateuseone"
    return set() if name == "privateuseone" else {name}


def _type_of(package: str) -> str:
    return package.removeprefix("torch_")


def _torch_entry_points(type: str) -> list[str]:
    return [package for package in autoload.all_packages() if _type_of(package) == type]


# --- objects and classes --------------------------------------------------------------------------------------------


def import_module(path: str, label: str) -> Any:
    """Import a module the user named; any failure is one sentence that names the inner exception."""
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
    except BaseException as error:
        # A module that calls sys.exit() while it is imported must not end the run silently.
        raise SetupError(_import_sentence(label, path, error)) from error


def _import_sentence(label: str, path: str, error: BaseException) -> str:
    fact = f"'{label}' cannot be used: importing {path} fails: {autoload.describe(error)}"
    return f"{fact}\n  check: python -c 'import {path}'"


def check_candidate(thing: Any, label: str) -> None:
    """Raise UsageError if ``thing`` cannot be an accelerator, whatever a device would say."""
    if inspect.ismodule(thing) or inspect.isroutine(thing):
        kind = "a module" if inspect.ismodule(thing) else "a function"
        raise UsageError(_no_accelerator(label, f"it is {kind}", "name a class or an object"))
    if isinstance(thing, type):
        _check_constructor(thing, label)
        if not members_of(thing) and not hasattr(thing, "__getattr__"):
            raise UsageError(_no_accelerator(label, f"it has none of the {len(MEMBERS)} members of the interface"))
        return
    require_accelerator(thing, label)


def _check_constructor(kind: type, label: str) -> None:
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(_no_accelerator(label, f"it cannot be built without arguments ({error})")) from None


def require_accelerator(thing: Any, label: str) -> None:
    """Raise UsageError unless the object can at least say its device's name; all other gaps are verdicts."""
    if has_member(thing, "device_name") or has_member(thing, "current_device_name"):
        return
    count = len(members_of(thing))
    raise UsageError(
        _no_accelerator(label, f"{type(thing).__name__} has no device_name() (and {count} of {len(MEMBERS)} members)")
    )


def _no_accelerator(label: str, fact: str, step: str = "") -> str:
    step = step or "an accelerator answers the methods of DeepSpeedAccelerator; see docs/new-accelerator.md"
    return f"'{label}' is no accelerator: {fact}.\n  {step}"


def instantiate(thing: Any, label: str) -> Any:
    """An instance of a class; an object as it is. A class with abstract members left is built without them."""
    if not isinstance(thing, type):
        return thing
    build: Callable[[], Any] = _without_abstract(thing) if inspect.isabstract(thing) else thing
    try:
        return build()
    except Exception as error:
        raise SetupError(
            f"'{label}' cannot be used: building {thing.__name__}() fails: {autoload.describe(error)}\n"
            f"  check: python -c 'from {thing.__module__} import {thing.__name__}; {thing.__name__}()'"
        ) from error


def _without_abstract(kind: type) -> type:
    """A subclass that can be built. What is abstract stays marked, so the proxy reports it as missing."""
    complete = type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__})
    complete.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return complete


# --- small facts ----------------------------------------------------------------------------------------------------


def file_beside(module: Any) -> Path | None:
    """``<module>.toml`` or ``capabilities.toml`` beside the module that was named."""
    source = getattr(module, "__file__", None)
    if source is None:
        return None
    candidates = (Path(source).with_suffix(".toml"), Path(source).with_name("capabilities.toml"))
    return next((file for file in candidates if file.exists()), None)


def deepspeed_names() -> list[str]:
    """The accelerators in the installed DeepSpeed, read from its file names; nothing is imported."""
    spec = importlib.util.find_spec("deepspeed")
    folders = spec.submodule_search_locations or [] if spec else []
    files = [file.name for folder in folders for file in Path(folder, "accelerator").glob("*_accelerator.py")]
    names = {re.sub(r"_accelerator\.py$", "", file) for file in files}
    return sorted(names - {"abstract", "real"})


def host_workers() -> int:
    """One process a core, as far as the memory reaches."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return max(1, min(cores, 4))
    return max(1, min(cores, memory // _BYTES_PER_WORKER, _MOST_WORKERS))


def _with_file(own: Declaration, file: Path | None) -> Declaration:
    return own.overridden_by(read_declaration(file, Source.CAPABILITIES)) if file else own

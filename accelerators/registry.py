"""Registry of accelerators: resolves the text after ``--accelerator`` without a device or a vendor's package."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from conformance.accelerators import autoload
from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.sources import (
    BackendSpec,
    DeepSpeedSpec,
    ObjectSpec,
    TorchTypeSpec,
    builtin_spec,
    check_candidate,
    file_beside,
    import_module,
)
from conformance.accelerators.spec import AcceleratorSpec, folder_name
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.base.accelerator_name import checked_accelerator_name
from conformance.base.errors import UnknownName, UsageError

GROUP = "conformance.accelerators"
_HINT = "also: module:Class, deepspeed:NAME, torch:TYPE, auto. To add one, see docs/new-accelerator.md"


def names() -> list[str]:
    """Return every registered name, built in or from an entry point. Nothing is imported."""
    return sorted({*builtin_names(), *_entry_points()})


def resolve(text: str) -> AcceleratorSpec:
    """Return the accelerator that the text names.

    Raises UnknownName for an unregistered name, UsageError for something that is no name or no accelerator, and
    SetupError if the named module fails to import.
    """
    # The named module may import torch. Another vendor's broken wheel must not break that import.
    autoload.disable()
    text = text.strip()
    if text == "auto":
        return _detected()
    if text and not _names_an_index(text):
        checked_accelerator_name(text)
    # Built-in names come first: an installed package cannot replace them.
    if text in builtin_names():
        return builtin_spec(text)
    if text in _entry_points():
        return _from_entry_point(text)
    kind, colon, rest = text.partition(":")
    if not text:
        raise UsageError(f"the accelerator's name is empty.\n  registered: {', '.join(names())}\n  {_HINT}")
    if not colon:
        raise UnknownName("accelerator", text, names(), _HINT)
    if rest.isdigit():
        raise _device_index(text, kind, rest)
    if kind == "deepspeed":
        return DeepSpeedSpec(text, folder_name(text), rest.lower())
    if kind == "torch":
        return TorchTypeSpec(text, folder_name(text), rest)
    return _from_module(text, kind, rest)


def _names_an_index(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*:\d+", text) is not None


def _device_index(text: str, kind: str, index: str) -> UsageError:
    """Return the error for the name of one device, such as ``cuda:0``."""
    name = kind.lower()
    if name not in names():
        return UnknownName("accelerator", kind, names(), _HINT)
    variable = builtin(name).visible_devices if name in builtin_names() else ""
    chosen = f"{variable}={index}" if variable else "the vendor's variable for visible devices"
    return UsageError(
        f"'{text}' names one device, and --accelerator takes the name of an accelerator.\n"
        f"  write --accelerator={name}; to choose a device, set {chosen}"
    )


def module_of(text: str) -> str | None:
    """Return the module that ``resolve`` imports for the text, or None if it imports none. Nothing is imported."""
    text = text.strip()
    if text in builtin_names():
        return None
    if text in (points := _entry_points()):
        return points[text].module
    kind, _, rest = text.partition(":")
    return kind if kind and rest and kind not in ("deepspeed", "torch") else None


def _detected() -> AcceleratorSpec:
    from conformance.accelerators.detection import detect

    return replace(resolve(detect()), text="auto")


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _from_entry_point(name: str) -> AcceleratorSpec:
    point = _entry_points()[name]
    module = import_module(point.module, name)
    return _spec(name, folder_name(name), _attribute(module, point.attr, name), module)


def _from_module(text: str, path: str, attribute: str) -> AcceleratorSpec:
    """Return the spec of ``module:attribute``. Imports the vendor's module, and loads no device."""
    if str(Path.cwd()) not in sys.path:
        # A console script does not search the working directory, and a vendor's module often lies there.
        sys.path.insert(0, str(Path.cwd()))
    module = import_module(path, text)
    candidate = _attribute(module, attribute, text)
    name = candidate.name if isinstance(candidate, TorchAccelerator) else text
    return _spec(text, folder_name(name), candidate, module)


def _attribute(module: object, path: str, label: str) -> object:
    """Return the attribute that a dotted path names. Raises ``UnknownName`` with the known names."""
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            known = [name for name in dir(value) if not name.startswith("_")]
            where = getattr(module, "__name__", str(module))
            raise UnknownName(f"'{label}': in {where},", part, known)
        value = getattr(value, part)
    return value


def _spec(text: str, name: str, candidate: object, module: object) -> AcceleratorSpec:
    """Return the spec of an object: a backend, or anything with the interface's methods."""
    if isinstance(candidate, TorchAccelerator):
        return BackendSpec(text, name, candidate, file_beside(module))
    check_candidate(candidate, text)
    return ObjectSpec(text, name, candidate, file_beside(module))

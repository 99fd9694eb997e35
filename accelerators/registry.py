"""From what people type after ``--accelerator`` to a subject. Touches no device and imports no vendor's package."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from conformance.accelerators import autoload
from conformance.accelerators.backends import builtin_names
from conformance.accelerators.origins import (
    DeclaredOrigin,
    DeepSpeedOrigin,
    ObjectOrigin,
    TorchOrigin,
    builtin_origin,
    check_candidate,
    file_beside,
    import_module,
)
from conformance.accelerators.subject import Origin, Subject, folder_name
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.errors import UnknownName, UsageError

GROUP = "conformance.accelerators"
_HINT = "also: module:Class, deepspeed:NAME, torch:TYPE, auto. To add one, see docs/new-accelerator.md"


def names() -> list[str]:
    """Every registered name: built in, and from entry points. Nothing is imported."""
    return sorted({*builtin_names(), *_entry_points()})


def resolve(spec: str) -> Subject:
    """The subject that ``spec`` names.

    Raises UnknownName for an unregistered name, UsageError for something that is no accelerator, and SetupError if
    the named module fails to import.
    """
    # A module that is named may import torch, and another vendor's broken wheel must not break that.
    autoload.disable()
    spec = spec.strip()
    if spec == "auto":
        return _detected()
    if spec in builtin_names():
        return Subject(spec, spec, builtin_origin(spec))
    if spec in _entry_points():
        return _from_entry_point(spec)
    kind, colon, rest = spec.partition(":")
    if not colon:
        raise UnknownName("accelerator", spec, names(), _HINT)
    if not kind or not rest:
        raise UsageError(f"'{spec}' names no accelerator.\n  write module:Class, deepspeed:NAME or torch:TYPE")
    if kind == "deepspeed":
        return Subject(spec, folder_name(spec), DeepSpeedOrigin(rest.lower()))
    if kind == "torch":
        return Subject(spec, folder_name(spec), TorchOrigin(rest))
    return _from_module(spec, kind, rest)


def _detected() -> Subject:
    from conformance.accelerators.detection import detect

    name = detect()
    return Subject("auto", name, resolve(name).origin)


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _from_entry_point(name: str) -> Subject:
    point = _entry_points()[name]
    module = import_module(point.module, name)
    return Subject(name, folder_name(name), _origin(_attribute(module, point.attr, name), module, name))


def _from_module(spec: str, path: str, attribute: str) -> Subject:
    if str(Path.cwd()) not in sys.path:
        # A console script does not look where it is started, and that is where a vendor's file lies.
        sys.path.insert(0, str(Path.cwd()))
    module = import_module(path, spec)
    thing = _attribute(module, attribute, spec)
    name = thing.name if isinstance(thing, TorchAccelerator) else spec
    return Subject(spec, folder_name(name), _origin(thing, module, spec))


def _attribute(module: object, path: str, label: str) -> object:
    thing = module
    for part in path.split("."):
        if not hasattr(thing, part):
            known = [name for name in dir(thing) if not name.startswith("_")]
            where = getattr(module, "__name__", str(module))
            raise UnknownName(f"'{label}': in {where},", part, known)
        thing = getattr(thing, part)
    return thing


def _origin(thing: object, module: object, label: str) -> Origin:
    if isinstance(thing, TorchAccelerator):
        return DeclaredOrigin(thing, file_beside(module))
    check_candidate(thing, label)
    return ObjectOrigin(label, thing, file_beside(module))

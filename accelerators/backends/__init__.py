"""One file per accelerator: ``<name>.py`` defines ``<NAME>``, and ``<name>.toml`` may stand beside it.

A new accelerator adds its own file and touches no other.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from conformance.accelerators.torch_accelerator import TorchAccelerator


def builtin_names() -> tuple[str, ...]:
    """The names of all files here, sorted. Nothing is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def builtin(name: str) -> TorchAccelerator:
    """The accelerator that ``<name>.py`` declares."""
    module = importlib.import_module(f"{__name__}.{name}")
    accelerator = getattr(module, name.upper())
    assert isinstance(accelerator, TorchAccelerator), f"{module.__file__} must define {name.upper()}"
    return accelerator


def declaration_beside(name: str) -> Path | None:
    """The TOML file shipped for that accelerator, if there is one."""
    file = Path(__path__[0]) / f"{name}.toml"
    return file if file.exists() else None

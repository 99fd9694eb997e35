"""Built-in backends: ``<name>.py`` defines ``<NAME>``, and ``<name>.toml`` may add a declaration.

A new backend adds its own file and changes no other file.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from conformance.accelerators.torch_accelerator import TorchAccelerator


def builtin_names() -> tuple[str, ...]:
    """Return the sorted names of all backends. Nothing is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def builtin(name: str) -> TorchAccelerator:
    """Return the accelerator that ``<name>.py`` defines."""
    module = importlib.import_module(f"{__name__}.{name}")
    accelerator = getattr(module, name.upper())
    assert isinstance(accelerator, TorchAccelerator), f"{module.__file__} must define {name.upper()}"
    return accelerator


def declaration_beside(name: str) -> Path | None:
    """Return the TOML file of that backend, or None."""
    file = Path(__path__[0]) / f"{name}.toml"
    return file if file.exists() else None

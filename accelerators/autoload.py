"""Loading of vendor packages: torch's autoload is off, and only the chosen package is loaded.

``import torch`` runs every installed entry point of group ``torch.backends``. One broken vendor wheel therefore breaks
every process on the machine. This module imports nothing heavy, because it has to run before torch is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata

from conformance.base.errors import ConformanceError, SetupError

_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_GROUP = "torch.backends"
#: torch reads this log level on import. 99 is above all of its levels, so its profiler prints nothing.
_PROFILER_LOG = ("KINETO_LOG_LEVEL", "99")


def disable() -> None:
    """Turn off torch's loading of vendor wheels and its profiler's messages. Has no effect after ``import torch``."""
    os.environ[_VARIABLE] = "0"
    os.environ.setdefault(*_PROFILER_LOG)


def entry_points(package: str) -> list[metadata.EntryPoint]:
    """Return the ``torch.backends`` entry points that belong to ``package``, by module or by name."""
    top = package.partition(".")[0]
    return [point for point in metadata.entry_points(group=_GROUP) if top in (point.name, _top(point.value))]


def load_vendor(package: str, accelerator: str) -> None:
    """Import ``package`` and run its ``torch.backends`` entry points. Every failure is a SetupError."""
    import_torch(accelerator)
    already_loaded = package in sys.modules
    try:
        importlib.import_module(package)
        # An entry point registers the device and must run once. Earlier imports of the package have run it.
        if not already_loaded:
            for point in entry_points(package):
                point.load()()
    except ConformanceError:  # its message already has a next step
        raise
    except Exception as error:
        raise SetupError(_sentence(package, accelerator, error)) from error


def import_torch(accelerator: str) -> None:
    """Import torch without its autoload. Raises ``SetupError`` that names the accelerator."""
    disable()
    try:
        importlib.import_module("torch")
    except Exception as error:
        raise SetupError(
            f"accelerator '{accelerator}' needs torch, and importing torch fails: {describe(error)}\n"
            "  check: python -c 'import torch'"
        ) from error


def _sentence(package: str, accelerator: str, error: Exception) -> str:
    """Return the text of the error for a vendor's package that does not load."""
    return (
        f"accelerator '{accelerator}' cannot be used: loading {package} fails: {describe(error)}\n"
        f"  check that {package} was built for the installed torch: python -c 'import {package}'"
    )


def describe(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _top(value: str) -> str:
    return value.partition(":")[0].partition(".")[0].strip()


def all_packages() -> list[str]:
    """Return the installed packages that have a ``torch.backends`` entry point. Nothing is imported."""
    return sorted({_top(point.value) for point in metadata.entry_points(group=_GROUP)})

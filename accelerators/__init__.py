"""Accelerators under test: interface, capability vocabulary, declarations, registry, and one data file per backend."""

from __future__ import annotations

from typing import Any

__all__ = ["get_accelerator", "set_accelerator"]


def get_accelerator() -> Any:
    """Return the accelerator of this process; see ``conformance.accelerators.selection``."""
    # Imported on the first call: importing only the vocabulary must not import the registry.
    from conformance.accelerators import selection

    return selection.get_accelerator()


def set_accelerator(accelerator: Any) -> None:
    """Replace the accelerator of this process; see ``conformance.accelerators.selection``."""
    from conformance.accelerators import selection

    selection.set_accelerator(accelerator)

"""The accelerators under test: interface, vocabulary, declarations, registry, one declarative file per backend."""

from __future__ import annotations

from typing import Any

__all__ = ["get_accelerator", "set_accelerator"]


def get_accelerator() -> Any:
    """The accelerator of this process; see ``conformance.accelerators.selection``."""
    # Imported when called: importing the vocabulary alone must not cost the registry.
    from conformance.accelerators import selection

    return selection.get_accelerator()


def set_accelerator(accelerator: Any) -> None:
    """Use this object from now on; see ``conformance.accelerators.selection``."""
    from conformance.accelerators import selection

    selection.set_accelerator(accelerator)

"""The accelerator of this process, as DeepSpeed's users know it: one object, chosen once.

``DS_ACCELERATOR`` overrides detection and takes whatever ``--accelerator`` takes.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from conformance.accelerators.registry import resolve
from conformance.accelerators.sources import require_accelerator
from conformance.errors import ConformanceError, UsageError

_VARIABLE = "DS_ACCELERATOR"
_LOCK = threading.Lock()
_chosen: list[Any] = []


def get_accelerator() -> Any:
    """The accelerator of this process; the same object at every call.

    Raises ValueError naming the known accelerators if ``DS_ACCELERATOR`` is unknown, or the package if it is missing.
    """
    with _LOCK:
        if not _chosen:
            _chosen.append(_choose(os.environ.get(_VARIABLE) or "auto"))
        return _chosen[0]


def set_accelerator(accelerator: Any) -> None:
    """Use this object from now on. TypeError if it is no accelerator; None is refused, too."""
    try:
        require_accelerator(accelerator, "set_accelerator()")
    except UsageError as error:
        raise TypeError(str(error)) from None
    with _LOCK:
        _chosen[:] = [accelerator]


def _choose(spec: str) -> Any:
    try:
        return resolve(spec).load()
    except ConformanceError as error:
        origin = f"{_VARIABLE}={spec}: " if spec != "auto" else ""
        raise ValueError(f"{origin}{error}") from error

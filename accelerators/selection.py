"""Selection of the accelerator of this process, with DeepSpeed's interface: one object, chosen once.

``DS_ACCELERATOR`` overrides detection and accepts the same texts as ``--accelerator``.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from conformance.accelerators.registry import resolve
from conformance.accelerators.sources import require_accelerator
from conformance.base.errors import ConformanceError, UsageError

_VARIABLE = "DS_ACCELERATOR"
_LOCK = threading.Lock()
_chosen: list[Any] = []


def get_accelerator() -> Any:
    """Return the accelerator of this process: the same object at every call.

    Raises ValueError with the known accelerators if ``DS_ACCELERATOR`` is unknown, or with the package that is missing.
    """
    with _LOCK:
        if not _chosen:
            _chosen.append(_choose(os.environ.get(_VARIABLE) or "auto"))
        return _chosen[0]


def set_accelerator(accelerator: Any) -> None:
    """Replace the accelerator of this process; raise TypeError if the object is not an accelerator, such as None."""
    try:
        require_accelerator(accelerator, "set_accelerator()")
    except UsageError as error:
        raise TypeError(str(error)) from None
    with _LOCK:
        _chosen[:] = [accelerator]


def _choose(text: str) -> Any:
    """Load the accelerator. Raises ``ValueError``, as DeepSpeed does, that names the variable."""
    try:
        return resolve(text).load()
    except ConformanceError as error:
        prefix = f"{_VARIABLE}={text}: " if text != "auto" else ""
        raise ValueError(f"{prefix}{error}") from error

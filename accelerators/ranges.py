"""Profiler ranges as a stack, shown by ``torch.profiler`` and, where the device has it, by its own tool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Ranges(threading.local):
    """The open ranges of each thread. Pushing and popping never raise."""

    def __init__(self) -> None:
        self._open: list[tuple[Any, Callable[[], Any] | None]] = []

    def push(self, tool: Any, message: str) -> None:
        """Open a range; ``tool`` is the device's own range module (``torch.cuda.nvtx``) or None."""
        from torch.autograd.profiler import record_function

        scope: Any = record_function(str(message))
        scope.__enter__()
        self._open.append((scope, _push(tool, str(message))))

    def pop(self) -> None:
        if not self._open:
            return
        scope, close = self._open.pop()
        if close is not None:
            close()
        scope.__exit__(None, None, None)


def _push(tool: Any, message: str) -> Callable[[], Any] | None:
    """Open the range in the device's tool too; what closes it, or None if the tool is not in this build."""
    if tool is None:
        return None
    try:
        tool.range_push(message)
    except RuntimeError:
        return None
    close: Callable[[], Any] = tool.range_pop
    return close

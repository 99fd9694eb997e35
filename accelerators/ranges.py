"""Profiler ranges as a stack, visible in ``torch.profiler`` and in the device's own profiling tool if it has one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Ranges(threading.local):
    """The open ranges of each thread. ``push`` and ``pop`` never raise."""

    def __init__(self) -> None:
        self._open: list[tuple[Any, Callable[[], Any] | None]] = []

    def push(self, tool: Any, message: str) -> None:
        """Open a range. ``tool`` is the device's own range module, such as ``torch.cuda.nvtx``, or None."""
        from torch.autograd.profiler import record_function

        scope: Any = record_function(str(message))
        scope.__enter__()
        self._open.append((scope, _push(tool, str(message))))

    def pop(self) -> None:
        """Close the range that this thread opened last, if there is one."""
        if not self._open:
            return
        scope, close = self._open.pop()
        if close is not None:
            close()
        scope.__exit__(None, None, None)


def _push(tool: Any, message: str) -> Callable[[], Any] | None:
    """Open the range in the device's tool; return the function that closes it, or None without such a tool."""
    if tool is None:
        return None
    try:
        # torch.cuda.nvtx exists in every build, and raises RuntimeError in one without NVTX.
        tool.range_push(message)
    except RuntimeError:
        return None
    close: Callable[[], Any] = tool.range_pop
    return close

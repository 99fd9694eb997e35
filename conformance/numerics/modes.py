"""Modes that a backend enables for the whole process, such as one that makes its tensors in Python.

They take part in calls on the device. The host's reference, the oracle and the comparison are PyTorch's alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.overrides
import torch.utils._python_dispatch

#: The stacks of modes are private to torch: no public function takes away the modes of others.
overrides: Any = torch.overrides
dispatch: Any = torch.utils._python_dispatch

#: The modes that ``without_modes`` has taken away, innermost last: function modes and dispatch modes.
_AWAY: list[tuple[list[Any], list[Any]]] = []


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Take away all modes that are active."""
    functions = [overrides._pop_mode() for _ in range(overrides._len_torch_function_stack())]
    dispatches = [dispatch._pop_mode() for _ in range(dispatch._len_torch_dispatch_stack())]
    _AWAY.append((functions, dispatches))
    try:
        yield
    finally:
        _AWAY.pop()
        _push(functions, dispatches)


@contextlib.contextmanager
def with_modes() -> Iterator[None]:
    """Bring back, for one call on the device, the modes that ``without_modes`` has taken away."""
    functions, dispatches = _AWAY[-1] if _AWAY else ([], [])
    _push(functions, dispatches)
    try:
        yield
    finally:
        for _ in functions:
            overrides._pop_mode()
        for _ in dispatches:
            dispatch._pop_mode()


def has_dispatch_modes() -> bool:
    """Return whether a dispatch mode takes part in calls on the device."""
    return dispatch._len_torch_dispatch_stack() > 0 or bool(_AWAY and _AWAY[-1][1])


def with_memory(value: Any) -> Any:
    """Return zeros for a tangent that is missing in forward mode, and any other value as it is.

    PyTorch 2.13 gives such a tangent no memory, and ends the process if a dispatch mode hands it on beside a number.
    """
    if isinstance(value, torch.Tensor) and value._is_zerotensor():
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    return value


def _push(functions: list[Any], dispatches: list[Any]) -> None:
    for mode in reversed(functions):
        overrides._push_mode(mode)
    for mode in reversed(dispatches):
        dispatch._push_mode(mode)

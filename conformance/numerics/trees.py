"""Traversal of nested arguments and results: tuples, lists and dicts of tensors and plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Types of values that hold no others and are the same on every device.
PLAIN_TYPES = frozenset({int, float, bool, complex, type(None), torch.dtype})
#: Types that ``mapped`` looks into. Most of what they hold are leaves, for which it is not called again.
_NESTED = frozenset({tuple, list, dict})


def leaves(value: Any) -> list[Any]:
    """Return all values in order; a torch.Size is one value."""
    if type(value) is torch.Tensor:  # most results are one
        return [value]
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    kind = type(value)
    # The types first: torch's own instance check takes longer for what is no tensor.
    if kind in PLAIN_TYPES or isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)) and kind is not torch.Size:
        for item in value:
            if type(item) in PLAIN_TYPES:  # a call for each of them would take longer
                found.append(item)
            else:
                _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
    else:
        found.append(value)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors in order."""
    if type(value) is torch.Tensor:  # most results are one
        return [value]
    found: list[torch.Tensor] = []
    _gather_tensors(value, found)
    return found


def _gather_tensors(value: Any, found: list[torch.Tensor]) -> None:
    if not isinstance(value, (tuple, list, dict)):
        if type(value) not in PLAIN_TYPES and isinstance(value, torch.Tensor):
            found.append(value)
        return
    for item in value.values() if isinstance(value, dict) else value:
        kind = type(item)
        if kind is torch.Tensor:
            found.append(item)
        elif kind not in PLAIN_TYPES:  # a call for each of these would take longer
            _gather_tensors(item, found)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the structure with ``change`` applied to every leaf; named tuples and other subclasses are leaves."""
    kind = type(value)
    if kind is tuple:
        return tuple([mapped(item, change) if type(item) in _NESTED else change(item) for item in value])
    if kind is list:
        return [mapped(item, change) if type(item) in _NESTED else change(item) for item in value]
    if kind is dict:
        return {key: mapped(item, change) if type(item) in _NESTED else change(item) for key, item in value.items()}
    return change(value)

"""Traversal of nested arguments and results: tuples, lists and dicts of tensors and plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def leaves(value: Any) -> list[Any]:
    """Return all values in order; a torch.Size is one value."""
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, torch.Tensor):  # first, because most values are tensors
        found.append(value)
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for item in value:
            _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
    else:
        found.append(value)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the structure with ``change`` applied to every leaf; named tuples and other subclasses are leaves."""
    if type(value) in (tuple, list):
        return type(value)(mapped(item, change) for item in value)
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    return change(value)

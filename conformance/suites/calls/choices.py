"""Kernels that choose positions, such as the largest: of equal numbers, any position is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.numerics.compare import plain, same_bits

from .kernels import base_name, bound, named


def chooses(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], position: int, actual: torch.Tensor, host: torch.Tensor
) -> bool:
    """Return whether other positions than the host's choose equal numbers, or the same ones in an open order.

    ``position`` is that of the output: the numbers come first, and then where they were. Both may be integers.
    """
    if base_name(function) not in named("choices"):
        return False
    names = bound(function, args, kwargs)
    is_unordered = base_name(function) == "topk" and not names["sorted"]
    if position == 0 and base_name(function) not in ("argmax", "argmin"):
        return is_unordered and _are_same(actual, host, names["dim"], is_unordered=True)
    source, dim = plain(names["self"]), names.get("dim", -1)
    if not source.dim():
        return bool((actual == 0).all())
    if dim is None:
        source, dim = source.reshape(-1), 0
        actual, host = actual.reshape(1), host.reshape(1)
    elif actual.dim() < source.dim():
        actual, host = actual.unsqueeze(dim), host.unsqueeze(dim)
    if actual.numel() and not (int(actual.min()) >= 0 and int(actual.max()) < source.shape[dim]):
        return False
    ordered = actual.sort(dim=dim).values
    twice = ordered.diff(dim=dim) == 0
    if base_name(function) in ("sort", "topk") and bool(twice.any()):
        return False
    chosen, due = source.gather(dim, actual), source.gather(dim, host)
    return _are_same(chosen, due, dim, is_unordered=is_unordered)


def _are_same(actual: torch.Tensor, host: torch.Tensor, dim: int, *, is_unordered: bool) -> bool:
    if is_unordered and actual.dim():
        actual, host = actual.sort(dim=dim).values, host.sort(dim=dim).values
    return same_bits(actual, host)

"""Kernels that choose positions, such as the largest: of equal numbers, any position is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.numerics.compare import plain, same_bits

from .kernels import base_name, bound, named


def chooses(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], actual: torch.Tensor, host: torch.Tensor
) -> bool:
    """Return whether other positions than the host's choose equal numbers."""
    if base_name(function) not in named("choices") or actual.dtype is not torch.int64:
        return False
    names = bound(function, args, kwargs)
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
    return same_bits(source.gather(dim, actual), source.gather(dim, host))

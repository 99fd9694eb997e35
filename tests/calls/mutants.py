"""Wrong results of one call, as of kernels that are wrong only at a size: the check of the call has to find each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.numerics.compare import same_bits
from conformance.suites.calls.judging import Ran
from conformance.suites.calls.kernels import base_name, bound

#: Elements of a tile; the last one of a result is partial.
_TILE = 1024


def mutants(ran: Ran) -> Iterator[tuple[str, Ran]]:
    """Yield changed results of a call, with a name each. One that changes nothing is left out."""
    for name, changed in _changed(ran):
        if not same_bits(changed, ran.after[0]):
            yield name, replace(ran, after=[changed, *ran.after[1:]])


def _changed(ran: Ran) -> Iterator[tuple[str, torch.Tensor]]:
    result = ran.after[0].contiguous()
    size = result.numel()
    if not size:
        return
    yield "the last partial tile", _with(result, slice(size - (size % _TILE or min(size, _TILE)), size), _other)
    half = 1 << (size - 1).bit_length() - 1 if size > 1 else 0
    yield "elements beyond a power of two", _with(result, slice(half, size), torch.zeros_like)
    yield "an index that wraps", _with(result, slice(half, size), lambda part: result.view(-1)[: len(part)])
    if result.is_floating_point():
        yield "all 5 % too large", result * 1.05
    if size > 64 * _TILE:
        begin = size // 3
        yield "a part in the middle", _with(result, slice(begin, begin + size // 48), _other)
    if result.dim() > 1 and result.shape[0] > 2:
        first = result.clone()
        first[-1] = _other(first[-1])
        yield "the last batch or row", first
    if base_name(ran.function) in ("mm", "addmm", "bmm", "baddbmm"):
        yield "a last part of the sum is lost", _short_sum(ran, result)


def _with(result: torch.Tensor, where: slice, change: Any) -> torch.Tensor:
    found = result.clone()
    flat = found.view(-1)
    flat[where] = change(flat[where].clone())
    return found


def _other(part: torch.Tensor) -> torch.Tensor:
    if part.dtype is torch.bool:
        return ~part
    return -part + 1 if part.is_floating_point() or part.is_complex() else part + 1


def _short_sum(ran: Ran, result: torch.Tensor) -> torch.Tensor:
    """Return a product whose sums lack their last sixteenth, as after a wrong split of the sum."""
    names = bound(ran.function, ran.given.args, ran.given.kwargs)
    left = names.get("mat1", names.get("batch1", names["self"]))
    right = names.get("mat2", names.get("batch2"))
    begin = left.shape[-1] - max(1, left.shape[-1] // 16)
    lost = left[..., begin:].float() @ right[..., begin:, :].float()
    return (result.float() - float(names.get("alpha", 1)) * lost).to(result.dtype)

"""Faults that only a size shows, by the operator whose kernel has them, and whether a call meets their condition.

A fault acts on every call of its kernel that is large enough, in any dtype: rows beyond a limit, an index that wraps, a
sum that loses its last part when it is split, a last tile that is not full, or a batch beyond the largest grid. Limits
of memory are scaled down: the simulated device need not make 2^31 elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.suites.calls.kernels import named
from tests.faults.fault import Hits
from tests.faults.overriding import Behaviour, Call

#: Elements from which on a last tile is part of a large call.
_LARGE = 1 << 15
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
#: Part of a sum that a wrong split loses.
_LOST = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of a call: the shape of its first result, and the terms of a sum in it (1: it has none)."""

    result: tuple[int, ...]
    terms: int = 1

    @classmethod
    def of(cls, operator: str, names: Mapping[str, Any], result: torch.Tensor) -> Sizes:
        """Return the sizes of a call by its arguments, on any device."""
        if operator == "convolution":
            return cls(tuple(result.shape), math.prod(names["weight"].shape[1:]))
        source = _left(names) if operator in _PRODUCTS else names.get("self")
        makes = operator.startswith("new_") or not result.is_floating_point()  # there is no sum, or an exact one
        if makes or not isinstance(source, torch.Tensor) or not source.dim():
            return cls(tuple(result.shape))
        terms = source.shape[-1] if operator in _PRODUCTS else source.numel() // max(1, result.numel())
        return cls(tuple(result.shape), max(1, terms))

    @property
    def elements(self) -> int:
        """Return the elements of the result."""
        return math.prod(self.result)

    @property
    def rows(self) -> int:
        """Return the rows of the result; 0 if it has fewer than two dimensions."""
        return math.prod(self.result[:-1]) if len(self.result) > 1 else 0

    @property
    def matrices(self) -> int:
        """Return the matrices of the result; 0 if it is no batch of them."""
        return math.prod(self.result[:-2]) if len(self.result) > 2 else 0


def _left(names: Mapping[str, Any]) -> Any:
    return names.get("mat1", names.get("batch1", names.get("self")))


@dataclass(frozen=True)
class Kind:
    """Kind of fault: what it is, its limits, the calls that meet it, and how it changes their result in place."""

    what: str
    limits: tuple[int, ...]
    is_met: Callable[[Sizes, int], bool]
    change: Callable[[torch.Tensor, int], Any]


@dataclass(frozen=True)
class SizeFault:
    """A fault of one kind, with its limit, in the kernel of one operator."""

    operator: str
    kind: str
    limit: int

    def __str__(self) -> str:
        return f"{self.operator}: {KINDS[self.kind].what.format(limit=f'{self.limit:,}')}"

    def is_met(self, sizes: Sizes) -> bool:
        """Return whether a call of these sizes is wrong."""
        if self.kind == "index" and self.operator in named("zeros"):
            return False  # zeros in another place are the same ones
        return KINDS[self.kind].is_met(sizes, self.limit)


def _other(part: torch.Tensor) -> None:
    if part.dtype is torch.bool:
        part.logical_not_()
    else:
        part.mul_(2).add_(1)


def _wrap(result: torch.Tensor, limit: int) -> None:
    """Write the elements beyond the limit over the first ones, and leave nothing in their place."""
    flat = result.view(-1)
    last = flat[(len(flat) - 1) // limit * limit :].clone()
    flat[limit:] = 0
    flat[: len(last)] = last


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(first, last + 1))


#: Kinds by name. Their limits are a grid: a call that meets a limit between two of its points meets the lower one.
KINDS: dict[str, Kind] = {
    "rows": Kind(
        "rows beyond {limit}",
        _powers(8, 16),
        lambda sizes, limit: sizes.rows > limit,
        lambda result, limit: _other(result.view(-1, result.shape[-1])[limit:]),
    ),
    "columns": Kind(
        "elements of a row beyond {limit}",
        _powers(8, 14),
        lambda sizes, limit: sizes.rows > 0 and sizes.result[-1] > limit,
        lambda result, limit: _other(result[..., limit:]),
    ),
    "index": Kind(
        "an index that wraps at {limit} elements",
        _powers(14, 22),
        lambda sizes, limit: sizes.elements > limit,
        _wrap,
    ),
    "tile": Kind(
        "the last partial tile of {limit} elements",
        _powers(7, 14),
        lambda sizes, tile: sizes.elements > _LARGE and sizes.elements % tile > 0,
        lambda result, tile: _other(result.view(-1)[result.numel() // tile * tile :]),
    ),
    "tile of rows": Kind(
        "the last partial tile of {limit} rows",
        _powers(3, 8),
        lambda sizes, tile: sizes.elements > _LARGE and sizes.rows > tile and sizes.rows % tile > 0,
        lambda result, tile: _other(result.view(-1, result.shape[-1])[math.prod(result.shape[:-1]) // tile * tile :]),
    ),
    "matrices": Kind(
        "a batch of more than {limit} matrices",
        (1 << 10, 1 << 12, 1 << 14, 65_535),
        lambda sizes, limit: sizes.matrices > limit,
        lambda result, limit: _other(result.view(-1, *result.shape[-2:])[limit:]),
    ),
    "terms": Kind(
        "a split of sums of more than {limit} terms",
        _powers(8, 14),
        lambda sizes, limit: sizes.terms > limit,
        lambda result, limit: result.mul_(1 - 1 / _LOST) if result.is_floating_point() else None,
    ),
}


def faults(operator: str, sizes: Iterable[Sizes]) -> Iterator[SizeFault]:
    """Yield every fault of an operator that a call of these sizes meets."""
    known = list(sizes)
    for name, kind in KINDS.items():
        for limit in kind.limits:
            fault = SizeFault(operator, name, limit)
            if any(map(fault.is_met, known)):
                yield fault


def behaviour(fault: SizeFault, hit: Hits) -> Behaviour:
    """Return the behaviour of a kernel with a fault."""

    def behave(call: Call) -> Any:
        found = call.run()
        result = found[0] if isinstance(found, tuple | list) else found
        names = dict(zip((argument.name for argument in call.arguments), call.values, strict=True))
        if isinstance(result, torch.Tensor) and fault.is_met(Sizes.of(fault.operator, names, result)):
            if fault.kind == "terms" and fault.operator in _PRODUCTS:
                result.sub_(_last_part(names))
            else:
                whole = result.contiguous()
                KINDS[fault.kind].change(whole, fault.limit)
                if whole.data_ptr() != result.data_ptr():
                    result.copy_(whole)
            hit()
        return found

    return behave


def _last_part(names: Mapping[str, Any]) -> torch.Tensor:
    """Return what the last terms of the sums of a product add."""
    left, right = _left(names), names.get("mat2", names.get("batch2"))
    begin = left.shape[-1] - left.shape[-1] // _LOST
    return float(names.get("alpha", 1)) * (left[..., begin:].contiguous() @ right[..., begin:, :].contiguous())

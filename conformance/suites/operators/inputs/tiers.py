"""Additional inputs beside the database's: sizes around tile edges, and special floating-point values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.facts import facts

from .arrangements import transposed

#: A number in the place of a second tensor, for which no kernel has a rule of its own, as for a power of one half.
_NUMBER = 0.7
#: Sides of a matrix that are no multiples of a tile's.
_RAGGED = (33, 65)
#: Images, channels, rows and columns; all differ.
_IMAGE = (2, 3, 5, 4)
#: Input, other arguments and keywords of a call, and what makes them for a size.
Arguments = tuple[torch.Tensor, tuple[torch.Tensor, ...], dict[str, Any]]
Build = Callable[[Any, torch.dtype, int], Arguments]


def edge_sizes(info: Any, dtype: torch.dtype, sizes: Sequence[int]) -> list[Call]:
    """Return samples for unary and binary operators: vectors of some sizes, around the edges of a tile."""
    build = _builder(info)
    if build is None:
        return []
    # Numbers from 1000 and 2000 on cannot be those of the database's samples.
    made = [Call(1000 + order, *build(info, dtype, size)) for order, size in enumerate(sizes)]
    return [replace(sample, source=f"size {size}") for sample, size in zip(made, sizes, strict=True)]


def ragged_matrices(info: Any, dtype: torch.dtype) -> list[Call]:
    """Return a sample of matrices for each tensor of a unary or binary operator, which alone is transposed in memory.

    A kernel that copies tiles through fast memory has another path for such operands, and for the edge of a matrix.
    """
    build = _builder(info)
    if build is None:
        return []
    first, rest, named = build(info, dtype, math.prod(_RAGGED))
    matrices = [tensor.reshape(_RAGGED) for tensor in (first, *rest)]
    found = []
    for number in range(len(matrices)):
        arranged = [transposed(matrix) if order == number else matrix for order, matrix in enumerate(matrices)]
        tier = f"{' x '.join(map(str, _RAGGED))}, input {number} transposed"
        found.append(Call(1500 + number, arranged[0], tuple(arranged[1:]), named, source=tier))
    return found


def image(info: Any, dtype: torch.dtype, shape: Sequence[int] = _IMAGE) -> Call | None:
    """Return a sample of this shape for a unary or binary operator: the database has vectors for many of them."""
    build = _builder(info)
    if build is None:
        return None
    first, rest, named = build(info, dtype, math.prod(shape))
    args = tuple(tensor.reshape(shape) for tensor in rest)
    return Call(1600, first.reshape(shape), args, named, source="an image")


def _builder(info: Any) -> Build | None:
    """Return what makes arguments for functions of one or two tensors; None for other operators."""
    if is_a(info, "UnaryUfuncInfo"):
        return _unary
    return _binary if is_a(info, "BinaryUfuncInfo") else None


def _unary(info: Any, dtype: torch.dtype, size: int) -> Arguments:
    """Return a vector of this size in the domain of the function, and its keywords."""
    low, high = info.domain
    tensor = torch.testing.make_tensor((size,), dtype=dtype, device="cpu", low=low, high=high)
    return tensor, (), _keywords(info, dtype, tensor)


def _binary(info: Any, dtype: torch.dtype, size: int) -> Arguments:
    """Return two vectors of this size in the domains of the function's operands, and its keywords."""
    left = torch.testing.make_tensor((size,), dtype=dtype, device="cpu", **info.lhs_make_tensor_kwargs)
    right = torch.testing.make_tensor((size,), dtype=dtype, device="cpu", **info.rhs_make_tensor_kwargs)
    return left, (right,), _keywords(info, dtype, left)


def _keywords(info: Any, dtype: torch.dtype, tensor: torch.Tensor) -> dict[str, Any]:
    """Return the keywords with which the database calls the function."""
    return dict(info.sample_kwargs("cpu", dtype, tensor)[0])


def has_special_values(info: Any) -> bool:
    """Return whether ``special_values`` has samples for this operator."""
    return _builder(info) is not None


def is_usual(info: Any, sample: Call, dtype: torch.dtype) -> bool:
    """Return whether a sample has the keyword arguments of the samples of ``special_values``, and no tensor in them."""
    has_tensors = any(isinstance(value, torch.Tensor) for value in sample.kwargs.values())
    return not has_tensors and set(sample.kwargs) == set(_keywords(info, dtype, sample.input))


def special_values(info: Any, dtype: torch.dtype, *, subnormals: bool = True) -> list[Call]:
    """Return a sample of NaN, infinities, signed zeros, subnormals and largest numbers; of all pairs if binary.

    Without ``subnormals``, the smallest normal number is in their places. What documentation leaves open is left out.
    """
    build = _builder(info)
    if build is None or not dtype.is_floating_point:
        return []
    values = _judged(info, _specials(dtype, subnormals=subnormals))
    if build is _unary:
        return [Call(2000, values, (), _keywords(info, dtype, values), source="special values")]
    left, right = (grid.reshape(-1) for grid in torch.meshgrid(values, values, indexing="ij"))
    pairs = Call(2000, left, (right,), _keywords(info, dtype, left), source="special values")
    # Most functions of two tensors have another kernel for a tensor and a number.
    number = Call(2001, values, (_NUMBER,), _keywords(info, dtype, values), source="special values and a number")
    return [pairs, number, *_beside_zero(info, dtype, values)]


def _beside_zero(info: Any, dtype: torch.dtype, values: torch.Tensor) -> list[Call]:
    """Return the values and the number 0 for a comparison: beside other numbers, a lost subnormal does not show."""
    sample = Call(2002, values, (0,), _keywords(info, dtype, values), source="special values and zero")
    return [sample] if not sample.kwargs and _compares(info, values) else []


def _compares(info: Any, values: torch.Tensor) -> bool:
    """Return whether the operator takes a number and gives truth values."""
    try:
        made = info.op(values, 0)
    except Exception:  # many functions of two tensors take no number
        return False
    return isinstance(made, torch.Tensor) and made.dtype is torch.bool


def _judged(info: Any, values: torch.Tensor) -> torch.Tensor:
    """Return the values with 1 in place of those for which documentation and standards leave the result open."""
    open_ = torch.zeros(values.shape, dtype=torch.bool)
    if facts(info.name).open_for_nan:
        open_ |= values.isnan()
    if facts(info.name).open_for_negative_zero:
        open_ |= (values == 0) & values.signbit()
    return torch.where(open_, torch.ones_like(values), values)


def _specials(dtype: torch.dtype, *, subnormals: bool) -> torch.Tensor:
    """Return special values and limits of a dtype; without ``subnormals``, the smallest normal in their place."""
    limit = torch.finfo(dtype)
    # Three steps of the smallest subnormal.
    subnormal = limit.smallest_normal * (limit.eps * 3 if subnormals else 1)
    inf, nan = float("inf"), float("nan")
    values = [nan, inf, -inf, 0.0, -0.0, subnormal, -subnormal, limit.smallest_normal, limit.max, limit.min, 1.0, -1.0]
    return torch.tensor(values, dtype=torch.float64).to(dtype)

"""Freivalds' check of whole products: C r is A (B r) for a vector r of random signs.

It costs three products of a matrix and a vector, and sees every element. r is drawn after the result is there. So the
rounding errors e of a row are fixed, and Hoeffding's inequality holds for their sum with random signs:
P(|sum r_j e_j| > t |e|) <= 2 exp(-t^2 / 2), where |e| is the root of the sum of the squares, and at most that of the
error budgets. With t = 8, a right row is accused with a probability below 3e-14. One wrong element in a row is always
seen if its error is above t times that root; several cancel with a probability of at most 1/2 for each vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.numerics.budgets import OpClass, accumulator_roundoff, budget_of, unit_roundoff

from .kernels import base_name, bound

PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})
#: Random vectors of one check, and the bound in roots of the sum of squared budgets.
_VECTORS, _BOUND = 2, 8.0
#: Matrices of a batch that are widened at a time have about so many elements.
_CHUNK: Final = 1 << 24


@dataclass(frozen=True)
class _Sums:
    """Random sums of the elements of each row, less the right ones: along the last dimension, one for each vector.

    ``response`` and ``size`` are the sums of the squares of a row's responses and elements.
    """

    error: torch.Tensor
    response: torch.Tensor
    size: torch.Tensor


def wrong_rows(function: Any, args: Any, kwargs: dict[str, Any], result: torch.Tensor, seed: int) -> str:
    """Return which rows of a product are wrong, as a phrase; empty if none is."""
    names, name = bound(function, args, kwargs), base_name(function)
    if name == "convolution":
        return _wrong_convolution(names, result, seed)
    left, right, added = _operands(name, names)
    result, left, right = (tensor if tensor.dim() == 3 else tensor.unsqueeze(0) for tensor in (result, left, right))
    if added is not None:
        added = (added.double() * float(names["beta"])).expand(result.shape)
    wide = _wide(result.dtype)
    signs = _signs(right.shape[2], seed).to(wide)
    step = max(1, _CHUNK // max(1, left[0].numel() + right[0].numel() + result[0].numel()))
    for begin in range(0, len(result), step):
        chunk = slice(begin, begin + step)
        bias = None if added is None else added[chunk].to(wide)
        given = (result[chunk].to(wide), left[chunk].to(wide), right[chunk].to(wide), bias)
        sums = _sums(*given, signs, float(names.get("alpha", 1)))
        if text := _wrong(sums, result.dtype, left.shape[2], result.shape[2], begin):
            return text
    return ""


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the sums. Numbers of 16 bits are exact in float32, and its roundings far below the bound."""
    return torch.float32 if dtype.itemsize == 2 else torch.float64


def _signs(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, (size, _VECTORS), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def _operands(name: str, names: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if name == "addmm":
        return names["mat1"], names["mat2"], names["self"]
    if name == "baddbmm":
        return names["batch1"], names["batch2"], names["self"]
    return names["self"], names["mat2"], None


def _sums(
    result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, signs: torch.Tensor, alpha: float
) -> _Sums:
    error = result @ signs - alpha * (a @ (b @ signs))
    # The squares of the responses of a row: the sums of the squares of its products.
    response = alpha * alpha * (a.square() @ b.square().sum(2, keepdim=True)).squeeze(2)
    if bias is not None:
        error = error - bias @ signs
        response = response + bias.square().sum(2)
    return _Sums(error, response, result.square().sum(2))


def _wrong_convolution(names: dict[str, Any], result: torch.Tensor, seed: int) -> str:
    """Compare random sums of the channels with the channels of a convolution with random sums of the filters."""
    if names["groups"] != 1 or names["transposed"] or names["input"].dim() != result.dim():
        return ""
    wide = _wide(result.dtype)
    source, weight, signs = names["input"].to(wide), names["weight"].to(wide), _signs(result.shape[1], seed).to(wide)
    others = (names["stride"], names["padding"], names["dilation"], False, names["output_padding"], 1)
    due = torch.ops.aten.convolution.default(source, torch.tensordot(signs.t(), weight, 1), None, *others)
    squares = weight.square().sum(0, keepdim=True)
    response = torch.ops.aten.convolution.default(source.square(), squares, None, *others).squeeze(1)
    found = result.to(wide)
    error = torch.tensordot(found, signs, ([1], [0])) - due.movedim(1, -1)
    if names["bias"] is not None:
        bias = names["bias"].to(wide)
        error, response = error - bias @ signs, response + bias.square().sum()
    sums = _Sums(error, response, found.square().sum(1))
    return _wrong(sums, result.dtype, weight[0].numel(), result.shape[1], 0)


def _wrong(sums: _Sums, dtype: torch.dtype, length: int, elements: int, begin: int) -> str:
    """Return the rows whose random sums are off by more than the bound. Each sums ``elements`` products of a length."""
    budget = budget_of(OpClass.CONTRACTION)
    growth = budget.conditioning * max(length, 1.0) ** budget.length * accumulator_roundoff(dtype)
    smallest = float(torch.finfo(dtype).smallest_normal) * math.sqrt(elements)
    rounding = budget.rounding * unit_roundoff(dtype) * sums.size.sqrt()
    allowed = _BOUND * (rounding + growth * (sums.response + sums.size).sqrt() + smallest)
    off = sums.error.abs().amax(-1).nan_to_num(math.inf)
    wrong = ~(off <= allowed)  # a bound that is not a number allows nothing
    if not bool(wrong.any()):
        return ""
    rows = wrong.nonzero()
    first = rows[0].tolist()
    shown = f"{len(rows):,} rows, the first one {[begin + first[0], *first[1:]]}"
    return f"a random sum of {shown} is off by {off[tuple(first)]:.3g}, allowed {allowed[tuple(first)]:.3g}"

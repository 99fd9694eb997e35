"""Products of lists of matrices: unlike shapes, strides and offsets, special values, and large integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.judging.checker import Checker
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.nearness import Near, near

from .special_lists import strided

#: Rows, inner length and columns of each product; one has more elements than one launch of a kernel works on.
_SHAPES = ((33, 9, 65), (5, 7, 3), (7, 3, 5), (6, 4, 6), (1, 4, 1), (8, 5, 9))
_LONG = (1031, 3, 1031)
_LARGE = 2.0**60
#: What multiplies two lists.
Products = Callable[..., Any]
#: Numbers that neither float32 nor float64 holds.
_INTEGERS = ((1 << 24) + 1, (1 << 53) + 1)


def check_products(check: Checker, device: torch.device, dtype: torch.dtype) -> None:
    """Check the products of lists of matrices; a device may have none for this dtype, or the installed torch."""
    function = getattr(torch.ops.aten, "_foreach_mm", None)
    if function is None:
        return
    left, right = _matrices(dtype)
    try:
        found = _products(check, function, left, right, device)
    except NotImplementedError:  # mm is another operator than the one that the case needs
        check.metric("foreach", "not computed: _foreach_mm")
        return
    for number, (actual, one, other) in enumerate(zip(found, left, right, strict=True)):
        label = f"_foreach_mm, product {number} of {tuple(one.shape)} and {tuple(other.shape)}"
        if dtype.is_floating_point:
            check.equal(actual.dtype, dtype, f"{label}: the dtype")
            near(check, label, actual, one.double() @ other.double(), Near.FORWARD)
        else:
            check.equal(actual, one @ other, label)
    if dtype.is_floating_point:
        _check_special(check, function, device, dtype)


def _products(check: Checker, function: Products, *lists_and_device: Any) -> list[torch.Tensor]:
    """Return the products of two lists, and check that neither list has changed."""
    *lists, device = lists_and_device
    given = [[strided(tensor, device) for tensor in each] for each in lists]
    found = [plain(tensor) for tensor in function(*given)]
    for name, after, before in zip(("first", "second"), given, lists, strict=True):
        same = all(same_bits(plain(new), old) for new, old in zip(after, before, strict=True))
        check.that(same, f"_foreach_mm: the {name} list after the call")
    return found


def _matrices(dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return pairs of matrices: contiguous, transposed, with gaps, with an offset and expanded."""
    shapes = [*([_LONG] if dtype is torch.float32 else []), *_SHAPES]
    left = [_arranged(_numbers((rows, inner), dtype), number + 1) for number, (rows, inner, _) in enumerate(shapes)]
    right = [
        _arranged(_numbers((inner, columns), dtype), number + 3) for number, (_, inner, columns) in enumerate(shapes)
    ]
    return left, right


def _numbers(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return (torch.rand(shape) + 0.2).to(dtype)
    numbers = torch.randint(-9, 10, shape, dtype=dtype)
    numbers.view(-1)[0], numbers.view(-1)[-1] = _INTEGERS
    return numbers % (1 << 25) if shape[0] > shape[1] else numbers


def _arranged(matrix: torch.Tensor, way: int) -> torch.Tensor:
    rows, columns = matrix.shape
    if way % 5 == 1:
        return matrix.t().contiguous().t()
    if way % 5 == 2:
        wide = torch.ones(rows, 2 * columns, dtype=matrix.dtype)
        return wide[:, 1::2].copy_(matrix)
    if way % 5 == 3:
        return torch.ones(rows * columns + 3, dtype=matrix.dtype)[3:].view(rows, columns).copy_(matrix)
    return matrix[:, :1].expand(rows, columns) if way % 5 == 4 else matrix


def _check_special(check: Checker, function: Products, device: torch.device, dtype: torch.dtype) -> None:
    """Check that NaN, infinities and subnormal numbers of either list are not lost."""
    plainly = torch.arange(1, 13, dtype=dtype).reshape(3, 4) / 8
    for value in (float("nan"), float("inf"), -float("inf")):
        special = plainly.clone()
        special[1, 2] = value
        for left, right in ((special, plainly.t()), (plainly, special.t())):
            (actual,) = _products(check, function, [left], [right], device)
            lost = actual.isfinite() & ~(left.double() @ right.double()).isfinite()
            check.that(not lost.any(), f"_foreach_mm: {value} in a matrix, and {int(lost.sum())} products are finite")
    if check.subnormals and dtype is torch.float32:
        tiny, large = plainly * torch.finfo(dtype).smallest_normal / 16, plainly * _LARGE
        for left, right in ((tiny, large.t()), (large, tiny.t())):
            (actual,) = _products(check, function, [left], [right], device)
            near(check, "_foreach_mm of subnormal numbers", actual, left.double() @ right.double(), Near.FORWARD)

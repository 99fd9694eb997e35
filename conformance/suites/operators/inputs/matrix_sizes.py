"""Sizes of matrices that models have: products, and factorisations beside the blocks of libraries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import torch

from .model_sizes import (
    CHANNELS,
    MANY_TERMS,
    MOST_ROWS,
    ROWS,
    TERMS,
    WORDS,
    Make,
    Size,
    named,
    positive,
    sizes_of,
    values,
    whole,
)

#: Rows or columns beside a single one: more than a group of 64 threads has, and no multiple of a vector.
_UNEVEN: Final = 67


# --- products of matrices ---------------------------------------------------------------------------------------------


def _products(dtype: torch.dtype) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield shapes of two matrices: many rows, many columns, a long sum, and an odd number of channels."""
    yield (MOST_ROWS if dtype is torch.float32 else ROWS, 2), (2, 3)
    yield (3, 2), (2, ROWS)
    yield (2, TERMS), (TERMS, 3)
    yield (129, CHANNELS), (CHANNELS, 96)


def _narrow(dtype: torch.dtype, *batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield two matrices, or batches of them, with each choice of one and many rows, terms and columns.

    Such a product has kernels for a vector or for one number in the place of a matrix, in each dtype.
    """
    for rows, terms, columns in itertools.product((_UNEVEN, 1), repeat=3):
        if 1 in (rows, terms, columns):
            yield positive(*batch, rows, terms, dtype=dtype), positive(*batch, terms, columns, dtype=dtype)


def _of_many_terms(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factors of 16 rows and columns whose products are added up beyond the counters of 16 bits."""
    return whole(16, MANY_TERMS, dtype=dtype), whole(MANY_TERMS, 16, dtype=dtype)


@sizes_of("mm", "matmul")
def _mm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield matrices with the matrix that each is multiplied by."""
    for left, right in _products(dtype):
        yield Size(values(left, dtype), (values(right, dtype),))
    for factor, other in (*_narrow(dtype), _of_many_terms(dtype)):
        yield Size(factor, (other,), trained=False)


@sizes_of("addmm")
def _addmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a row with the two matrices whose product it is added to."""
    for left, right in _products(dtype):
        yield Size(whole(right[1], dtype=dtype), (values(left, dtype), values(right, dtype)))
    for factor, other in (*_narrow(dtype), _of_many_terms(dtype)):
        yield Size(whole(other.shape[1], dtype=dtype), (factor, other), trained=False)


@sizes_of("nn.functional.linear")
def _linear(dtype: torch.dtype) -> Iterator[Size]:
    """Yield inputs of linear layers with weight and bias: many rows, long sums, a vocabulary, batches of one row."""
    for left, right in _products(dtype):
        bias = whole(right[1], dtype=dtype)
        yield Size(values(left, dtype), (values(right[::-1], dtype), bias))
    yield Size(whole(2, 3, 8, dtype=dtype), (whole(WORDS, 8, dtype=dtype), whole(WORDS, dtype=dtype)))
    yield Size(whole(ROWS, 1, 2, dtype=dtype), (whole(3, 2, dtype=dtype), whole(3, dtype=dtype)))
    for factor, other in (*_narrow(dtype), _of_many_terms(dtype)):
        yield Size(factor, (other.t().contiguous(),), trained=False)


def _batches() -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Yield shapes of two batches of matrices: many batches, a long sum, odd heads, and many rows."""
    yield (ROWS, 1, 2), (ROWS, 2, 1)
    yield (2, 1, TERMS), (2, TERMS, 3)
    yield (5, 77, CHANNELS), (5, CHANNELS, 77)
    yield (2, ROWS, 2), (2, 2, 1)


@sizes_of("bmm")
def _bmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices with the batch that each is multiplied by."""
    for left, right in _batches():
        yield Size(values(left, dtype), (values(right, dtype),))
    long, longer = _of_many_terms(dtype)
    yield Size(long[None], (longer[None],), trained=False)
    for factor, other in _narrow(dtype, 3):
        yield Size(factor, (other,), trained=False)
        # Heads lie beside each other in the memory of a token.
        permuted = _permuted(factor), _permuted(other)
        for first, second in ((permuted[0], other), (factor, permuted[1]), permuted):
            yield Size(first, (second,), trained=False)


def _permuted(batch: torch.Tensor) -> torch.Tensor:
    """Return the same matrices with the rows of all of them side by side in memory."""
    return batch.transpose(0, 1).contiguous().transpose(0, 1)


@sizes_of("baddbmm")
def _baddbmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches with the two batches of matrices whose product they are added to."""
    for left, right in _batches():
        added = whole(left[0], left[1], right[2], dtype=dtype)
        yield Size(added, (values(left, dtype), values(right, dtype)))
    for factor, other in _narrow(dtype, 3):
        added = whole(3, factor.shape[1], other.shape[2], dtype=dtype)
        yield Size(added, (factor, other), trained=False)


@sizes_of("addbmm")
def _addbmm(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a matrix with two batches of matrices whose products are added to it: many columns, rows or batches."""
    for left, right in (((3, 2, 4), (3, 4, ROWS)), ((3, ROWS, 4), (3, 4, 2)), ((ROWS, 2, 1), (ROWS, 1, 3))):
        factors = whole(*left, dtype=dtype), whole(*right, dtype=dtype)
        yield Size(whole(left[1], right[2], dtype=dtype), factors, trained=False)


@sizes_of("mv")
def _mv(dtype: torch.dtype) -> Iterator[Size]:
    """Yield a matrix of many rows and one of long sums, each with a vector."""
    yield Size(whole(ROWS, 3, dtype=dtype), (whole(3, dtype=dtype),))
    yield Size(positive(3, TERMS, dtype=dtype), (positive(TERMS, dtype=dtype),))


@sizes_of("dot", "vdot", "inner")
def _dot(dtype: torch.dtype) -> Iterator[Size]:
    """Yield two vectors of 4,099 elements: their product is a long sum."""
    yield Size(positive(TERMS, dtype=dtype), (positive(TERMS, dtype=dtype),))
    yield Size(whole(MANY_TERMS, dtype=dtype), (whole(MANY_TERMS, dtype=dtype).flip(0),), trained=False)


# --- many small matrices ----------------------------------------------------------------------------------------------


def _matrices(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield a batch of positive definite matrices, longer than a launch has blocks in y and z."""
    if dtype is torch.float32:
        yield torch.tensor([[3.0, 1.0], [1.0, 2.0]]) + torch.eye(2) * whole(ROWS, 1, 1, dtype=dtype, most=1)


@sizes_of("cholesky", "cholesky_inverse", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det",
          "linalg.eigvalsh", "linalg.inv", "linalg.inv_ex", "linalg.slogdet", "linalg.svdvals")  # fmt: skip
def _factors(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices to factorise or to invert."""
    for matrices in _matrices(dtype):
        yield Size(matrices, trained=False)


@sizes_of("linalg.solve", "linalg.solve_ex")
def _solutions(dtype: torch.dtype) -> Iterator[Size]:
    """Yield batches of matrices with the right-hand sides of their equations."""
    for matrices in _matrices(dtype):
        yield Size(matrices, (whole(ROWS, 2, 1, dtype=dtype),), trained=False)
        yield Size(matrices[:2], (whole(2, 2, MOST_ROWS, dtype=dtype),), trained=False)


@sizes_of("cholesky_solve", "triangular_solve")
def _solutions_behind(dtype: torch.dtype) -> Iterator[Size]:
    """Yield right-hand sides of equations with their batch of matrices, which these operators take second."""
    for matrices in _matrices(dtype):
        yield Size(whole(ROWS, 2, 1, dtype=dtype), (matrices,), trained=False)
        yield Size(whole(2, 2, MOST_ROWS, dtype=dtype), (matrices[:2].triu(),), trained=False)


#: Matrices of a batch of which each has more rows than a block.
_MANY: Final = 259


@sizes_of("linalg.solve_triangular")
def _many_triangles(dtype: torch.dtype) -> Iterator[Size]:
    """Yield triangular matrices with many right-hand sides, and many matrices of many rows."""
    if dtype is not torch.float32:
        return
    small, large = torch.tensor([[2.0, 1.0], [0.0, 4.0]]), (torch.eye(_MANY) * 2).expand(_MANY, -1, -1)
    yield Size(small.repeat(2, 1, 1), (whole(2, 2, MOST_ROWS, dtype=dtype),), named(upper=True), trained=False)
    yield Size(large, (whole(_MANY, _MANY, 1, dtype=dtype),), named(upper=False), trained=False)


# --- matrices around the blocks of factorisations ---------------------------------------------------------------------

#: Sides of matrices just beyond the blocks in which libraries factorise: one more than 32, 64 and 256.
_BEYOND_BLOCKS: Final = (33, 65, 257)
#: Columns of right-hand sides, and those by which a matrix is longer than wide.
_FEW: Final = 3


def _well_conditioned(side: int, dtype: torch.dtype) -> torch.Tensor:
    """Return two symmetric positive definite matrices, whose diagonals are larger than the rest of their rows.

    Their determinants are numbers of float32. The diagonal has all numbers from 1/2 to 3/2, and the second matrix has
    other numbers beside it than the first.
    """
    around = whole(2, side, side, dtype=dtype) / (8 * side)
    return torch.diag(torch.linspace(0.5, 1.5, side, dtype=dtype)) + (around + around.mT) / 2


def _in_blocks(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield pairs of such matrices for each block."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        yield _well_conditioned(side, dtype)


@sizes_of("cholesky", "cholesky_inverse", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det", "linalg.eigvalsh",
          "linalg.inv", "linalg.inv_ex", "linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.pinv", "linalg.slogdet",
          "linalg.svdvals", "logdet", "matrix_exp")  # fmt: skip
def _symmetric_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices; the first one of a batch may be right alone."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices, trained=False)


@sizes_of("linalg.lu", "linalg.lu_factor", "linalg.lu_factor_ex", "lu")
def _exchanged_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices whose rows a factorisation exchanges, square ones and ones with more rows or columns."""
    for matrices in _in_blocks(dtype):
        for given in (matrices.roll(1, -2), matrices[..., :-_FEW], matrices[:, :-_FEW].roll(1, -2)):
            yield Size(given, trained=False)


@sizes_of("linalg.qr", "qr", "geqrf")
def _long_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices, and of ones with more rows than columns."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices, trained=False)
        yield Size(matrices[..., :-_FEW], trained=False)


@sizes_of("linalg.solve", "linalg.solve_ex")
def _solved_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices whose rows a solution exchanges, with right-hand sides."""
    for matrices in _in_blocks(dtype):
        yield Size(matrices.roll(1, -2), (whole(2, matrices.shape[-1], _FEW, dtype=dtype),), trained=False)


@sizes_of("cholesky_solve", "triangular_solve")
def _solved_behind_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield right-hand sides with pairs of triangular matrices."""
    for matrices in _in_blocks(dtype):
        yield Size(whole(2, matrices.shape[-1], _FEW, dtype=dtype), (matrices.triu(), True), trained=False)


@sizes_of("linalg.solve_triangular")
def _solved_triangles(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of triangular matrices with right-hand sides."""
    for matrices in _in_blocks(dtype):
        right = whole(2, matrices.shape[-1], _FEW, dtype=dtype)
        for upper, given in ((True, matrices.triu()), (False, matrices.tril())):
            yield Size(given, (right,), named(upper=upper), trained=False)


def _solved_by_factors(*, first: bool) -> Make:
    """Return a maker of pairs of factors, of which neighbours are exchanged, with right-hand sides before or behind."""

    def make(dtype: torch.dtype) -> Iterator[Size]:
        for factors in _in_blocks(dtype):
            side = factors.shape[-1]
            pivots = (torch.arange(side, dtype=torch.int32) + 2).clamp(max=side).repeat(2, 1)
            right = whole(2, side, _FEW, dtype=dtype)
            given, *rest = (right, factors, pivots) if first else (factors, pivots, right)
            yield Size(given, tuple(rest), trained=False)

    return make


sizes_of("lu_solve")(_solved_by_factors(first=True))
sizes_of("linalg.lu_solve")(_solved_by_factors(first=False))


@sizes_of("linalg.householder_product")
def _reflected_blocks(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices of reflections with their factors: as many as columns, and fewer."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        vectors = whole(2, side + _FEW, side, dtype=dtype) / side
        factors = positive(2, side, dtype=dtype) / 4
        yield Size(vectors, (factors,), trained=False)
        yield Size(vectors, (factors[..., : side // 2],), trained=False)


@sizes_of("ormqr")
def _multiplied_by_reflections(dtype: torch.dtype) -> Iterator[Size]:
    """Yield pairs of matrices of reflections with their factors and what they multiply."""
    for side in _BEYOND_BLOCKS if dtype is torch.float32 else ():
        vectors, factors = whole(2, side, side, dtype=dtype) / side, positive(2, side, dtype=dtype) / 4
        yield Size(vectors, (factors, whole(2, side, _FEW, dtype=dtype)), trained=False)

"""Factors with orthonormal columns, of matrices that do not determine them: zeros, equal rows, equal eigenvalues.

The database's matrices have full rank. There such factors are open but for signs; here they are open altogether, so no
host is a reference, and what they have to be is their definition: orthonormal, and factors of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.judge.cells import Cell

#: Numbers from 9940 on are no numbers of other samples.
_NUMBER: Final = 9940
#: The cube root of the spacing of the dtype's numbers is far above every rounding at these sizes, also that of products
#: of fewer bits, and far below what a lost column makes.
_ROOT: Final = 1 / 3

#: What has orthonormal columns in a result, and the matrix that the result is a factorisation of.
Parts = Callable[[Any], tuple[list[torch.Tensor], torch.Tensor]]


def _singular(result: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    left, values, right = result
    return _of_vectors_in_rows((left, values, right.mH))


def _of_vectors_in_rows(result: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    left, values, right = result
    count = values.shape[-1]
    return [left, right.mH], (left[..., :count] * values.unsqueeze(-2).to(left.dtype)) @ right[..., :count, :]


def _eigen(result: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    values, vectors = result
    return [vectors], (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH


def _triangular(result: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [result[0]], result[0] @ result[1]


_PARTS: Final[dict[str, Parts]] = {
    "linalg.svd": _of_vectors_in_rows,
    "svd": _singular,
    "linalg.eigh": _eigen,
    "linalg.qr": _triangular,
    "qr": _triangular,
}


def _matrices(dtype: torch.dtype, *, square: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield Hermitian matrices, and others, whose factors their values do not determine."""
    yield "equal rows", torch.ones(4, 4, dtype=dtype)
    yield "zeros", torch.zeros(3, 3, dtype=dtype)
    yield "equal eigenvalues", 2 * torch.eye(5, dtype=dtype)
    yield "matrices of each rank", torch.stack([torch.arange(4).lt(rank).to(dtype).diag() for rank in range(5)])
    if not square:
        yield "equal columns", torch.ones(5, 3, dtype=dtype)
        yield "equal rows of a wide matrix", torch.ones(2, 6, dtype=dtype)


@check(Mode.INFERENCE, stage=Stage.FORMS)
def orthonormal(cell: Cell) -> None:
    """Check that the columns of factors are orthonormal, and that the factors give the matrix again."""
    parts = _PARTS.get(cell.info.full_name)
    if parts is None:
        return
    bound = float(torch.finfo(cell.dtype).eps) ** _ROOT
    for number, (what, matrix) in enumerate(_matrices(cell.dtype, square=parts is _eigen)):
        sample = Call(_NUMBER + number, matrix, source=f"{what}, whose factors are open")
        factors, product = parts(execution.execute(cell.info.op, cell.on(sample)))
        for factor in map(plain, factors):
            error = _distance(factor.mH @ factor, torch.eye(factor.shape[-1], dtype=factor.dtype))
            cell.judge.claim(sample, error <= bound, f"columns are not orthonormal: they are off by {error:.3g}")
        error = _distance(plain(product), matrix)
        cell.judge.claim(sample, error <= bound * 8, f"the factors' product is off by {error:.3g}")


def _distance(found: torch.Tensor, due: torch.Tensor) -> float:
    """Return the largest difference, infinity if there is a NaN."""
    return float(torch.nan_to_num((found - due).abs(), nan=torch.inf).max())

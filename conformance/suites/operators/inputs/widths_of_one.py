"""Dimensions of size 1 at any place, each one row of two: their strides say nothing of how the others lie in memory.

A kernel that asks whether the last stride is 1, or takes a tensor with such a dimension for a contiguous one, reads or
writes other memory for these. Products of complex matrices get theirs conjugated too: a library that conjugates has to
transpose as well, and a row's strides do not say whether it is a transposed column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import large, variants
from .arrangements import ONE_OF_TWO, Change, lazily_negated, one_of_two
from .families import Stage, source
from .kinds import of_other_sizes

#: Numbers from 9850 on are no numbers of other samples.
_NUMBER = 9850
#: Dimensions of a matrix.
_MATRIX = 2
#: Numbers at the two ends of the last dimension and of the one before, by the full name of an operator that pads, and
#: by the shape of a column or a row. The database pads no matrix along both dimensions.
_PADS: Final[dict[str, dict[tuple[int, ...], tuple[int, ...]]]] = {
    "nn.functional.pad.constant": {(4, 1): (2, 1, 1, 1), (1, 4): (1, 1, 2, 1), (2, 4, 1): (1, 2, 1, 1)},
    "nn.functional.pad.replicate": {(2, 4, 1): (2, 1, 1, 1), (2, 1, 4): (1, 1, 2, 1)},
    "nn.functional.pad.circular": {(2, 4, 1): (1, 1, 2, 1), (2, 1, 4): (1, 2, 1, 1)},
    "nn.functional.pad.reflect": {(2, 4, 1): (0, 0, 2, 1), (2, 1, 4): (1, 2, 0, 0)},
}


def _compare(cell: Cell, sample: Call) -> None:
    """Compare a call, its in-place form and its outputs for dimensions of size 1 that are one row of two."""
    variants.rearranged(cell, sample, (ONE_OF_TWO,))
    variants.in_place_of(cell, sample, (ONE_OF_TWO,))
    if cell.info.supports_out:
        variants.into_arranged(cell, sample, "outputs of one row of two", one_of_two)


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, once=True, fixed=True)
def widths_of_one(cell: Cell) -> Iterator[Call]:
    """Yield a sample with size 1 in each dimension of its first tensor in turn, in all but one, and in all tensors.

    A matrix has its turn too where the sample has more dimensions, as kernels often take other ways for it.
    """
    sample, number = of_other_sizes(cell), _NUMBER
    for shape, pads in _PADS.get(cell.info.full_name, {}).items():
        numbers = torch.arange(1, 1 + math.prod(shape)).view(shape).to(cell.dtype)
        mode = cell.info.full_name.rpartition(".")[2]
        yield Call(number, numbers, (pads, mode), source=f"pads {pads} around one row or column")
        number += 1
    if sample is None:
        return
    for given in [sample, *matrices(cell, sample)]:
        for shrunk in _shrunk(cell, given):
            yield replace(shrunk, number=number, source=f"size 1 in dimension {shrunk.source}")
            number += 1


def matrices(cell: Cell, sample: Call) -> list[Call]:
    """Return another sample whose first tensor is a matrix, where the sample has more dimensions."""
    if sample.input.dim() <= _MATRIX:
        return []
    found = (each for each in cell.fixed if isinstance(each.input, torch.Tensor) and each.input.dim() == _MATRIX)
    return [each for each in found if large.may_shrink(each) and each.input.numel()][:1]


def _shrunk(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one row along each dimension alone, and along all but the first and all but the last."""
    dims = sample.input.dim()
    for dim in range(dims):
        if (found := with_one_row(cell, sample, dim)) is not None:
            yield replace(found, source=str(dim))
    # Of a matrix, all dimensions but one are the other one.
    for kept in {0, dims - 1} if dims > _MATRIX else ():
        if (found := with_all_but_one(cell, sample, kept)) is not None:
            yield replace(found, source=f"all but {kept}")
    ones = sample.with_arguments(mapped(sample.arguments, _first))
    if host_call(cell.info.op, ones).comparable:
        yield replace(ones, source="all of all tensors")


def _first(leaf: Any) -> Any:
    """Return the first element of a tensor, with as many dimensions."""
    if not isinstance(leaf, torch.Tensor) or not leaf.numel():
        return leaf
    return leaf.detach()[(slice(0, 1),) * leaf.dim()].clone()


def with_all_but_one(cell: Cell, sample: Call, kept: int) -> Call | None:
    """Return the sample with one row along each dimension of its first tensor but one; None if the host refuses it."""
    found: Call | None = sample
    for dim in range(sample.input.dim()):
        if dim != kept and found is not None:
            found = with_one_row(cell, found, dim)
    return found


def with_one_row(cell: Cell, sample: Call, dim: int) -> Call | None:
    """Return the sample with one row along a dimension of its first tensor, and of others that the host needs so."""
    if not sample.tensors[0].numel():
        return None
    for growth in large.growths(sample, channels=True):
        if growth[0] == dim:
            found = large.extended(cell.info, sample, growth, 1)
            if host_call(cell.info.op, found).comparable:
                return found
    return None


#: Numbers from 10200 on are no numbers of other samples. Rows, terms or columns beside single ones, and batches.
_CONJUGATED, _SEVERAL, _BATCHES = 10200, 5, 2
#: A place for the values of each factor: as they are, conjugated, and the adjoint of what lies in memory.
_LIES: Final[dict[str, Change]] = {
    "": lambda leaf: leaf,
    "conjugated": lazily_negated,
    "adjoint": lambda leaf: leaf.mT.conj().resolve_conj().contiguous().mH,
}
#: How many batches an operator has, and its input and other arguments for a product, by its full name.
_PRODUCTS: Final[dict[str, tuple[int, Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]]]] = {
    "mm": (0, lambda x, y: (x, y)),
    "matmul": (0, lambda x, y: (x, y)),
    "__rmatmul__": (0, lambda x, y: (y, x)),
    "bmm": (_BATCHES, lambda x, y: (x, y)),
    "addmm": (0, lambda x, y: (_added(x, y), x, y)),
    "addmm.decomposed": (0, lambda x, y: (_added(x, y), x, y)),
    "baddbmm": (_BATCHES, lambda x, y: (_added(x, y), x, y)),
    "addbmm": (_BATCHES, lambda x, y: (_added(x, y)[0], x, y)),
    "nn.functional.linear": (0, lambda x, y: (x, y.mT)),
    "einsum": (0, lambda x, y: ([x, y], "ij,jk->ik")),
    "tensordot": (0, lambda x, y: (x, y, 1)),
    "linalg.multi_dot": (0, lambda x, y: ([x, y, y.mT],)),
    "inner": (0, lambda x, y: (x, y.mT)),
    "mv": (0, lambda x, y: (x, y[:, 0])),
    "addmv": (0, lambda x, y: (_added(x, y)[:, 0], x, y[:, 0])),
    "outer": (0, lambda x, y: (x[:, 0], y[0])),
    "addr": (0, lambda x, y: (_added(x, y), x[:, 0], y[0])),
    "dot": (0, lambda x, y: (x[0], y[:, 0])),
    "vdot": (0, lambda x, y: (x[0], y[:, 0])),
}


@source(
    Mode.INFERENCE,
    lambda cell, given: variants.check_arranged(cell, [given]),
    stage=Stage.FORMS,
    dtypes=(torch.complex64, torch.complex128),
)
def conjugated_products(cell: Cell) -> Iterator[Call]:
    """Yield products of complex matrices with one row, term or column, of which one or both are conjugated."""
    if cell.info.full_name not in _PRODUCTS:
        return
    batches, make = _PRODUCTS[cell.info.full_name]
    batch, number = (batches,) if batches else (), _CONJUGATED
    for rows, terms, columns in itertools.product((_SEVERAL, 1), repeat=3):
        left, right = (_complex(cell.dtype, *batch, *sizes) for sizes in ((rows, terms), (terms, columns)))
        for first, second in itertools.product(_LIES, repeat=2):
            if not first == second == "" and 1 in (rows, terms, columns):
                given, *args = make(_LIES[first](left), _LIES[second](right))
                what = f"{rows} rows, {terms} terms, {columns} columns"
                lies = f"the left {first or 'as usual'}, the right {second or 'as usual'}"
                yield Call(number, given, tuple(args), source=f"{what}: {lies}")
            number += 1


def _added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return what a product of two matrices is added to."""
    return _complex(x.dtype, *x.shape[:-1], y.shape[-1]).flip(-1)


def _complex(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return small whole complex numbers, none of which is real: sums of their products are exact."""
    steps = torch.arange(math.prod(shape))
    return torch.complex((steps * 7 % 5 - 1.0), (steps * 3 % 4 + 1.0)).to(dtype).view(shape)

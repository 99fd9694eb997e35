"""Families of large samples; ``large.py`` makes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from . import large
from .comparing import check_call
from .families import Stage, source
from .variants import check_forms

#: Dtypes that have a sample of many blocks: those of models, and one of the complex ones, for which some operators have
#: their only kernel. The others have theirs in the deep tier.
_OF_MODELS = (torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool, torch.complex64)


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, values=False)
def grown(cell: Cell) -> list[Call]:
    """Return samples with a large output, a long reduction, and other kinds of arguments."""
    return large.grown(cell.info, cell.samples, cell.dtype, cell.work.large)


@source(Mode.INFERENCE, check_forms, stage=Stage.FORMS)
def grown_forms(cell: Cell) -> list[Call]:
    """Return large samples for the ``out=`` and the in-place form, whose kernels may be others."""
    if not cell.info.supports_out and cell.info.inplace_variant is None:
        return []
    return large.grown(cell.info, cell.samples, cell.dtype, cell.work.large, forms=True)


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE)
def of_each_dtype(cell: Cell) -> Iterator[Call]:
    """Yield a sample of many blocks for a dtype that no family gives larger ones."""
    if cell.dtype in large.LARGE or not (cell.deep or cell.dtype in _OF_MODELS):
        return
    yield from large.of_each_dtype(cell.info, cell.fixed, cell.dtype, cell.work.large)


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, values=False)
def batched(cell: Cell) -> Iterator[Call]:
    """Yield samples with many batches or channels, and long rows with equal elements."""
    yield from large.batched(cell.info, cell.samples, cell.dtype, cell.work.large)
    yield from large.with_ties(cell.info, cell.dtype)


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, dtypes=(torch.float32,), deep=True)
def counted(cell: Cell) -> list[Call]:
    """Return samples with more elements than a number of float32 counts."""
    if cell.op_class is OpClass.ITERATIVE:
        return []
    return large.grown(cell.info, cell.samples, cell.dtype, cell.work.large, cell.work.large.counted)

"""Special values of functions of one and two tensors, with the signs of zeros."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge import oracle, promises
from conformance.suites.operators.judge.cells import Cell

from . import tiers, variants
from .comparing import check_with_forms
from .families import check

#: Added to the number of a sample of special values for one of many.
_MANY = 50


@check(Mode.INFERENCE, values=False)
def specials(cell: Cell) -> None:
    """Compare results for NaN, infinities, signed zeros and subnormals, with the signs of zeros."""
    for sample in tiers.special_values(cell.info, cell.dtype, subnormals=cell.check.subnormals):
        made, device = host_call(cell.info.op, sample), cell.on(sample)
        if isinstance(made.error, TypeError) and not all(isinstance(given, torch.Tensor) for given in sample.args):
            continue  # the operator takes no number in the place of its second tensor
        if made.error is not None:
            raise made.error
        if made.draws:
            return  # drawn numbers cannot be compared element by element
        actual, expected = execution.execute(cell.info.op, device), made.value
        exact = oracle.of_forward(cell.info, sample)
        cell.judge.outcome(sample, (actual, device), (expected, made.given), exact)
        if promises.promises_zero_signs(cell.info):
            cell.judge.signs(sample, actual, expected, exact)
        variants.check_forms(cell, sample)
        if cell.values and isinstance(expected, torch.Tensor) and expected.dtype is torch.bool:
            _check_truth(cell, sample)


def _check_truth(cell: Cell, sample: Call) -> None:
    """Compare truth values of special values in other arrangements, and of many: of ordinary ones, most are alike."""
    variants.rearranged(cell, sample)
    if isinstance(sample.input, torch.Tensor) and not sample.args and sample.input.dtype is torch.float32:
        rows = -(-cell.work.large.elements // sample.input.numel())
        many = replace(
            sample, input=sample.input.repeat(rows), number=sample.number + _MANY, source="many special values"
        )
        check_with_forms(cell, many)

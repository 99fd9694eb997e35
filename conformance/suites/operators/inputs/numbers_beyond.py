"""Numbers of a call that 16 bits do not hold, and numbers with a fraction beside integers.

A number that a call gives beside a tensor has no dtype of its own: a kernel that rounds it to that of the tensor has
infinity for a bound beyond float16, and another factor in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge import compositions
from conformance.suites.operators.judge.cells import Cell

from .families import source
from .kinds import unlike
from .settings import compare, places_of_numbers, plain_leaves, with_numbers_at

#: Numbers from 9690 on are no numbers of other samples.
_NUMBER = 9690
#: Numbers with a factor for all floating-point tensors, so that results are numbers of the dtype: one beyond the
#: largest of float16, one that is 0 in float16, a large one of bfloat16, a fraction.
_NUMBERS = {
    torch.float16: ((70_000.0, 2.0**-10), (1e-9, 2.0**10)),
    torch.bfloat16: ((1e30, 1.0),),
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), ((0.7, 1.0),)),
}
#: Samples of an operator, each with other kinds of arguments.
_SAMPLES = 2


@source(Mode.INFERENCE, compare, dtypes=tuple(_NUMBERS), fixed=True)
def numbers_beyond(cell: Cell) -> Iterator[Call]:
    """Yield samples in which one number is beyond 16 bits or a fraction, if the host's result is finite."""
    if cell.op_class is OpClass.ITERATIVE:
        return
    number = _NUMBER
    for sample in unlike(cell, cell.fixed, _SAMPLES):
        # What has no tensor makes one, whose size depends on the numbers.
        takes = isinstance(sample.input, torch.Tensor) and sample.input.numel() > 1
        for place in places_of_numbers(cell.info, sample) if takes and _keeps_shape(cell, sample) else ():
            for value, factor in _numbers(cell, sample):
                signed = -value if plain_leaves(sample)[place] < 0 else value
                other = _scaled(with_numbers_at(sample, {place: signed}), factor)
                other = replace(other, number=number, source=f"{signed:g} at {place}")
                number += 1
                if host_call(cell.info.op, other).finite:
                    yield other


def _numbers(cell: Cell, sample: Call) -> list[tuple[float, float]]:
    """Return the numbers for a sample, each with its factor.

    A device may compose some operators step by step. Products of tensors with a factor are then results between the
    steps that 16 bits do not hold.
    """
    composed = compositions.is_composed(cell.info, sample)
    return [(value, factor) for value, factor in _NUMBERS[cell.dtype] if factor == 1 or not composed]


def _scaled(sample: Call, factor: float) -> Call:
    """Return the sample with all floating-point tensors multiplied by the factor."""

    def change(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.layout is torch.strided
        return leaf.detach() * factor if is_real else leaf

    return sample if factor == 1 else sample.with_arguments(mapped(sample.arguments, change))


def _keeps_shape(cell: Cell, sample: Call) -> bool:
    """Return whether the result has the shape of the tensors: a scale or a step says how large another result is."""
    made = host_call(cell.info.op, sample)
    try:
        shape = torch.broadcast_tensors(*sample.tensors)[0].shape  # type: ignore[no-untyped-call]  # of torch
    except RuntimeError:
        return False
    return made.comparable and all(tensor.shape == shape for tensor in tensors(made.value))

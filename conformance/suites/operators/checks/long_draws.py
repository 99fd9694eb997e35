"""One long draw of an operator that draws random numbers: more than one block or one launch of a kernel draws.

The database's samples have a hundred elements, from which no law of a block's end or of a launch's end shows. Numbers
at these places must have the moments that they have on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import plain
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.inputs import large, randomness
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.judge.cells import Cell

#: Elements of a long draw. A launch of 2^20 elements leaves so many that their mean tells something.
_ELEMENTS = (1 << 20) + (1 << 16) + 77
#: Most rows of the input to one of the result.
_MOST = 4.0
#: Rows for which growth is measured.
_FEW = 16
#: Parts of some places. The spread of their means gives the standard error, also where neighbours are dropped together.
_PARTS = 16
#: Standard errors by which means may differ: of Student's distribution with as many degrees of freedom as parts.
_SIGMAS = 12.0
#: Elements that one block works on, of which the first and the last are compared.
_BLOCK = 256
_SHORTEST = 10


@check(Mode.INFERENCE, stage=Stage.LARGE, dtypes=(torch.float32,), values=False)
def long_draws(cell: Cell) -> None:
    """Compare the moments of a long draw with the host's at the ends of blocks and launches, in float32."""
    if not cell.tally.drawn or cell.op_class is OpClass.ITERATIVE:
        return
    sample = next((found for each in cell.samples if (found := _long(cell, each)) is not None), None)
    if sample is None:
        return
    sample = sample.named(change="a long draw")
    host = plain(tensors(randomness.draw_on_host(cell.info, sample, seed=11))[0])
    given = [sample]
    if cell.info.supports_out:
        given += filter(partial(randomness.is_taken, cell.info), [randomness.into_output(cell.info, sample, host)])
    for form in given:
        _compare(cell, form, plain(tensors(randomness.draw(cell, form, seed=11))[0]), host)


def _compare(cell: Cell, form: Call, device: torch.Tensor, host: torch.Tensor) -> None:
    """Compare the moments of the device's numbers with the host's, at several places of a long draw."""
    cell.judge.equal(form, device.shape, host.shape, "the shape")
    for name, places in _places(host.numel()):
        found, wanted = (values.reshape(-1)[places].double() for values in (device, host))
        for statistic, moment in _MOMENTS.items():
            distance = _distance(moment(found), moment(wanted))
            said = f"{statistic} of {name} differs by {distance:.1f} standard errors, allowed {_SIGMAS}"
            cell.judge.claim(form, distance <= _SIGMAS, said)


def _long(cell: Cell, sample: Call) -> Call | None:
    """Return the sample grown along the dimensions by which its result grows; None if it does not draw or grow."""
    if sample.number not in cell.tally.drawn or not large.fits(cell.info, sample) or facts(cell.info.name).draws_pairs:
        return None
    for growth in large.growths(sample):
        few, many = (
            _elements(cell.info, large.extended(cell.info, sample, growth, length)) for length in (_FEW, 2 * _FEW)
        )
        rate = (many[1] - few[1]) / _FEW
        if rate >= 1 and (many[0] - few[0]) / _FEW <= _MOST * rate and many[1] <= 2.5 * few[1]:
            return large.extended(cell.info, sample, growth, int(_ELEMENTS / rate) | 1)
    return None


def _elements(info: Any, sample: Call) -> tuple[int, int]:
    """Return the elements of the largest input and of the first result; zeros if the host refuses."""
    try:
        made = tensors(randomness.draw_on_host(info, sample, seed=11))
    except Exception:  # this dimension cannot grow
        return 0, 0
    inputs = max((tensor.numel() for tensor in sample.tensors), default=0)
    return inputs, made[0].numel() if made and not made[0].is_complex() else 0


def _places(elements: int) -> Iterator[tuple[str, slice]]:
    """Yield the places of elements that have the same law as all others."""
    for power in range(_SHORTEST, elements.bit_length()):
        yield f"elements from 2^{power}", slice(1 << power, min(2 << power, elements))
    yield "the first elements of blocks", slice(_BLOCK, None, _BLOCK)
    yield "the last elements of blocks", slice(_BLOCK - 1, None, _BLOCK)


#: Bounded functions of the numbers, as a mean of Cauchy's distribution does not exist.
_MOMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the share of zeros": lambda values: (values == 0).double(),
    "the mean arc tangent": torch.atan,
    "the mean arc tangent of the square": lambda values: torch.atan(values * values),
}


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the difference of two means in standard errors."""
    ours, theirs = (_parts(values) for values in (found, wanted))
    if not theirs.var() > 0:
        return 0.0  # on the host, one choice decides about all of these places, as it does for a channel
    error = math.sqrt(float(ours.var() + theirs.var()) / _PARTS)
    return abs(float(ours.mean() - theirs.mean())) / error


def _parts(values: torch.Tensor) -> torch.Tensor:
    """Return the means of equal parts of the numbers."""
    length = values.numel() // _PARTS
    return values[: length * _PARTS].reshape(_PARTS, length).mean(1)

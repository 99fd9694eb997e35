"""Gradients at points where a function of single elements may have a kink: at zero, at a bound, at an edge.

PyTorch documents a convention for some of these points ("Gradients for non-differentiable functions", notes on
autograd): of a convex function, the subgradient of least norm. Where no convention is documented, as at the bounds of
``clamp``, any number between the derivatives on both sides is right. Those of a convex function are between them, too.
A formula may also be wrong at such a point where the function has no kink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import call, host_gradients
from conformance.suites.operators.calls.passes import Pass
from conformance.suites.operators.inputs.families import check
from conformance.suites.operators.inputs.kinds import unlike
from conformance.suites.operators.inputs.settings import plain_leaves
from conformance.suites.operators.judge.cells import Cell

#: Numbers from 9670 on are no numbers of other samples.
_NUMBER = 9670
#: Points at which PyTorch's functions have kinks by default, beside the numbers that a call gives.
_POINTS = (0.0, 0.5, 1.0, 2.0, 3.0, 6.0)
#: How far beside a point the derivative of each side is taken, in float64.
_BESIDE = 1e-9
#: Difference of the two derivatives that is a kink, and largest derivative beside one: a pole is none.
_KINK, _STEEP = 1e-2, 100.0
#: Share of a derivative by which one at a point without a kink may be off: the other families compare digits.
_ROUGH = 2.0**-5
#: Relative and absolute difference that is a rounding of float64.
_NEAR = 1e-12
#: Samples of an operator, each with other kinds of arguments.
_SAMPLES = 4
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
#: A cotangent of ones: the gradient is the derivative.
_ONES = Pass(torch.ones_like)


@check(Mode.TRAINING, dtypes=_FLOATS, fixed=True)
def kinks(cell: Cell) -> None:
    """Check that each gradient at a point is one of those between the derivatives on both sides."""
    if not is_a(cell.info, "UnaryUfuncInfo") and not cell.info.name.startswith("nn.functional."):
        return
    for order, sample in enumerate(unlike(cell, cell.fixed, _SAMPLES)):
        for given, low, high in _kinks_of(cell, sample):
            named = replace(given, number=_NUMBER + order, source="usual points", backward=_ONES)
            _check(cell, named, low, high)


def _check(cell: Cell, sample: Call, low: torch.Tensor, high: torch.Tensor) -> None:
    """Claim that each gradient at a point lies between the derivatives on its two sides, or near both."""
    _, (gradient,) = _ONES.run(cell.info, execution.execute, execution.gradients, cell.on(sample), cell.seed)
    found = plain(gradient).double()
    share = torch.where(high - low > _KINK, 4 * torch.finfo(cell.dtype).eps, _ROUGH)
    room = share * (1 + torch.maximum(low.abs(), high.abs()))
    right = (found >= low - room) & (found <= high + room)
    worst = int((~right).flatten().to(torch.int64).argmax())
    said = f"the gradient at {float(sample.input.detach().flatten()[worst]):g} is {float(found.flatten()[worst]):g}, "
    said += f"and the derivatives beside it are {float(low[worst]):g} and {float(high[worst]):g}"
    cell.judge.claim(sample, bool(right.all()), said)


def _kinks_of(cell: Cell, sample: Call) -> Iterator[tuple[Call, torch.Tensor, torch.Tensor]]:
    """Yield the sample at usual points, with the smaller and the larger derivative beside each; nothing at poles."""
    if len(sample.tensors) != 1 or not isinstance(sample.input, torch.Tensor) or sample.process is not None:
        return
    points = _points(cell, sample)
    sides = [_slopes(cell.info, sample, points + beside) for beside in (-_BESIDE, 0.0, _BESIDE)]
    if any(side is None for side in sides):
        return
    left, own, right = sides
    assert left is not None and own is not None and right is not None
    at = torch.stack([left, own, right]).abs().lt(_STEEP).all(0)
    # Without a kink, PyTorch's own formula may have no limit there.
    at &= ((left - right).abs() > _KINK) | ((own - left).abs() < _KINK)
    if bool(at.any()) and _is_of_single_elements(cell.info, sample, points[at]):
        chosen = points[at].to(cell.dtype).requires_grad_()
        pair = left[at], right[at]
        yield sample.with_tensor(sample.input, chosen), torch.minimum(*pair), torch.maximum(*pair)


def _points(cell: Cell, sample: Call) -> torch.Tensor:
    """Return the points in float64 that the dtype holds."""
    given = [abs(float(leaf)) for leaf in plain_leaves(sample) if type(leaf) in (int, float) and abs(leaf) < _STEEP]
    sizes = dict.fromkeys([*_POINTS, *given])
    points = torch.tensor(sorted({sign * size for size in sizes for sign in (-1.0, 1.0)}), dtype=torch.float64)
    return points[points.to(cell.dtype).double() == points]


def _slopes(info: Any, sample: Call, points: torch.Tensor) -> torch.Tensor | None:
    """Return the derivatives at some points in float64; None if the host has none."""
    given = sample.with_tensor(sample.input, points.detach().requires_grad_()).on(HOST)
    try:
        result = call(info.op, given)
        is_one = isinstance(result, torch.Tensor) and result.shape == points.shape and result.is_floating_point()
        if not is_one or not result.requires_grad:
            return None
        (found,) = host_gradients([result], [given.input], [torch.ones_like(result)])
    except Exception:  # each operator refuses in its own way
        return None
    return found


def _is_of_single_elements(info: Any, sample: Call, points: torch.Tensor) -> bool:
    """Return whether each result depends on one element: in another order, the results have that order.

    The last elements of a loop may be rounded otherwise than those that a processor computes together.
    """
    one, two = (call(info.op, sample.with_tensor(sample.input, each).on(HOST)) for each in (points, points.flip(0)))
    return torch.allclose(one, two.flip(0), rtol=_NEAR, atol=_NEAR, equal_nan=True)

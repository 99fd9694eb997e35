"""Cases of the calls of models: one for each kernel and dtype, with its calls at their real sizes."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, Cell
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, Tier, cases

from .data import sample


def generate():
    """Return a case for each kernel and dtype, and one of the deep tier for its longer calls."""
    return [
        Case(
            id=f"calls.{group.kernel}{'.large' if group.is_deep else ''}[{group.dtype}]",
            area="calls",
            tier=Tier.DEEP if group.is_deep else Tier.UNIT,
            axes=(("dtype", group.dtype),),
            requires=_needs(group),
            deadline=600.0 if group.is_deep else 60.0,
            payload=group,
        )
        for group in sample()
    ]


def _needs(group):
    """Return the cell of the operator, and the dtypes of all tensors."""
    dtypes = sorted({tensor["dtype"] for call in group.calls for tensor in call.tensors()} - {group.dtype})
    own = Cell(*group.requires) if group.requires else DTYPE.on(group.dtype)
    return (own, *(DTYPE.on(dtype) for dtype in dtypes))


@cases(generate)
def test_calls(case, device, check):
    """The calls that models of transformers make of this kernel are right at their real sizes and strides.

    A sample of each result is compared with exact values; of a product, random sums of every row too.
    """
    from .judging import run, wrong

    too_large = []
    for number, spec in enumerate(case.payload.calls):
        try:
            with torch.no_grad():
                text = wrong(run(spec, device, number), number)
        except torch.OutOfMemoryError:
            too_large.append(spec)
            continue
        check.that(not text, f"call {number}, {spec}: {text}")
    if too_large:
        raise EnvironmentLacks(f"{len(too_large)} calls do not fit into the device's memory, {too_large[0]} first")

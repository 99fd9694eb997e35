"""The body of every operator case, of the unit and of the deep tier."""

from __future__ import annotations

import functools
from dataclasses import replace

from conformance.accelerators.capabilities import DENORMALS, DTYPES
from conformance.plan.case import cases
from conformance.suites.operator_claims import claims_calls

from .plan import catalogue, deep


def generate():
    """Return the cases of both tiers."""
    return [*catalogue.generate(), *deep.generate()]


@cases(generate)
def test_operator(accelerator, declaration, device, case, check):
    """An operator has the right results, gradients, metadata and refusals in this dtype and mode.

    The deep tier gives it many more inputs, and calls the overloads behind it directly.
    """
    from . import cell

    check.subnormals = declaration.supports(DENORMALS.cell)
    operator = case.requires[0]
    check.dtypes = frozenset(dtype for dtype in DTYPES if declaration.supports(replace(operator, dtype=dtype)))
    check.claims = functools.partial(claims_calls, declaration)
    cell.run(case, device, check, getattr(accelerator, "package", "") or "")

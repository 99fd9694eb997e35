"""The body of every deep case of an operator."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.capabilities import DENORMALS, DTYPES
from conformance.case import cases

from . import deep


@cases(deep.generate)
def test_deep(accelerator, declaration, device, case, check):
    """An operator has the right results, gradients and refusals for many more inputs, as have its overloads."""
    from . import cell  # imports torch, which a plan does not need

    check.subnormals = declaration.supports(DENORMALS.cell)
    operator = case.requires[0]
    check.dtypes = frozenset(dtype for dtype in DTYPES if declaration.supports(replace(operator, dtype=dtype)))
    cell.run(case, device, check)

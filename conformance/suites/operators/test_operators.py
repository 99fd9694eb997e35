"""The body of every operator case."""

from __future__ import annotations

from dataclasses import replace

from conformance.accelerators.capabilities import DENORMALS, DTYPES
from conformance.accelerators.declaration import State
from conformance.case import cases

from . import catalogue


@cases(catalogue.generate)
def test_operator(accelerator, declaration, device, case, check):
    """An operator has the right results, gradients, metadata and refusals in this dtype and mode."""
    from . import cell  # imports torch, which a plan does not need

    check.subnormals = declaration.claim(DENORMALS.cell).state is State.SUPPORTED
    claims = {dtype: declaration.claim(replace(case.requires[0], dtype=dtype)) for dtype in DTYPES}
    check.dtypes = frozenset(dtype for dtype, claim in claims.items() if claim.state is State.SUPPORTED)
    cell.run(case, device, check)

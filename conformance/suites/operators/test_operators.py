"""The body of every operator case."""

from __future__ import annotations

from conformance.case import cases

from . import catalogue


@cases(catalogue.generate)
def test_operator(accelerator, device, case, check):
    """An operator has the right results, gradients, metadata and refusals in this dtype and mode."""
    from . import cell  # imports torch, which a plan does not need

    cell.run(case, device, check)

"""One body for every operator cell."""

from __future__ import annotations

from conformance.case import cases

from . import catalogue


@cases(catalogue.generate)
def test_operator(accelerator, device, case, check):
    """Results, gradients, metadata and refusals of one operator are right in this dtype and mode."""
    from . import cell

    cell.run(case, device, check)

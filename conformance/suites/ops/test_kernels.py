"""Three bodies for all kernels: calls, refusals, properties."""

from __future__ import annotations

from conformance.case import cases

from . import planned


@cases(planned.results)
def test_results(accelerator, device, declaration, case, check):
    """What a kernel changes and returns is its specification's, within the error budget; inputs keep their bits."""
    from . import execution

    execution.run_sample(accelerator, device, declaration, case, check)


@cases(planned.refusals)
def test_refusals(accelerator, device, case, check):
    """Wrong arguments are an error, and nothing has been modified when it is raised."""
    from . import execution

    execution.run_refusal(accelerator, device, case, check)


@cases(planned.properties)
def test_properties(accelerator, device, declaration, case, check):
    """What holds between several calls of a kernel."""
    from . import execution

    execution.run_property(accelerator, device, declaration, case, check)

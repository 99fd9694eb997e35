"""Bodies of all kernel cases: calls, refusals, properties."""

from __future__ import annotations

from conformance.plan.case import cases

from . import planned


@cases(planned.results)
def test_results(accelerator, device, declaration, case, check):
    """A kernel gives its specification's results within the error budget and leaves its inputs unchanged."""
    from . import execution  # imports torch, which a plan does not need

    execution.run_sample(accelerator, device, declaration, case, check)


@cases(planned.refusals)
def test_refusals(accelerator, device, case, check):
    """A kernel raises an error for wrong arguments before it modifies a tensor."""
    from . import execution

    execution.run_refusal(accelerator, device, case, check)


@cases(planned.properties)
def test_properties(accelerator, device, declaration, case, check):
    """Several calls of a kernel have the relation that its specification defines."""
    from . import execution

    execution.run_property(accelerator, device, declaration, case, check)

"""Builders of kernels keep their word."""

from __future__ import annotations

from conformance.accelerators.capabilities import OP_BUILDERS
from conformance.case import case
from conformance.kernels.specifications import builder_names

from .loading import loaded, says_yes


@case("ops.builders.compatible_is_loadable", axes={"builder": builder_names()}, requires=[OP_BUILDERS])
def test_compatible_is_loadable(accelerator, builder, check):
    """is_compatible() is True exactly when load() gives something to call. A builder that is None says no."""
    found = accelerator.create_op_builder(builder)
    says = found is not None and says_yes(found)

    try:
        loads = found is not None and loaded(found) is not None
    except Exception as error:  # whatever load() says no with
        loads, why = False, f"load() raises {type(error).__name__}: {error}"
    else:
        why = "load() gives functions" if loads else "load() gives nothing"

    check.that(says == loads, f"is_compatible() is {says}, and {why}")

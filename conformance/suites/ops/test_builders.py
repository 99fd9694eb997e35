"""Cases for kernel builders: is_compatible() agrees with load()."""

from __future__ import annotations

from conformance.accelerators.capabilities import OP_BUILDERS
from conformance.kernels.specifications import builder_names
from conformance.plan.case import case

from .loading import is_compatible, loaded, report_builder


@case("ops.builders.compatible_is_loadable", axes={"builder": builder_names()}, requires=[OP_BUILDERS])
def test_compatible_is_loadable(accelerator, builder, check):
    """A builder says that it is compatible exactly when its load() returns functions."""
    found = accelerator.create_op_builder(builder)  # None is a refusal as well
    report_builder(check, found)
    compatible = found is not None and is_compatible(found)

    try:
        loads = found is not None and loaded(found) is not None
    except Exception as error:  # any exception of load() is a refusal
        loads, why = False, f"load() raises {type(error).__name__}: {error}"
    else:
        why = "load() returns functions" if loads else "load() returns nothing"

    check.that(compatible == loads, f"is_compatible() is {compatible}, but {why}")

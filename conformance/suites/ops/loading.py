"""Access to kernels that an accelerator's builders load, for cases without a specification."""

from __future__ import annotations

from conformance.accelerators.interface import stands_for_nothing
from conformance.judging.finding import Refused, environment_lacks
from conformance.kernels.builders import OpBuilder
from conformance.kernels.implementation import Implementation, choice_behind
from conformance.process.watchdog import while_compiling


def functions(accelerator, builder):
    """Return the object that the builder loads.

    Raise Refused if the accelerator has no such builder, or if the builder is not compatible.
    """
    found = _compatible(accelerator, builder)
    if found is None:
        raise Refused(f"the accelerator has no compatible {builder}")
    return loaded(found)


def functions_if_any(accelerator, builder):
    """Return the object that the builder loads, for cases that do not check the builder itself.

    Skip the case (environment) if the accelerator has no such builder, or if the builder is not compatible.
    """
    found = _compatible(accelerator, builder)
    if found is None:
        environment_lacks(f"the accelerator has no {builder}")
    return loaded(found)


def report_kernel(check, function):
    """Report whose kernel ran the last call of a function that a builder loads."""
    choice = choice_behind(function)
    check.metric("implementation", choice.implementation.value)
    check.metric("implementation_reason", choice.reason)
    return choice


def report_own_check(check, function):
    """Report whose code refused a call of ``function``: this project's functions check their arguments themselves."""
    if not hasattr(function, "choice"):
        report_kernel(check, function)
        return
    check.metric("implementation", Implementation.NATIVE.value)
    check.metric("implementation_reason", "this project checked the arguments, before any kernel")


def report_builder(check, builder):
    """Report whose builder answered."""
    is_ours = isinstance(builder, OpBuilder)
    check.metric("implementation", (Implementation.NATIVE if is_ours else Implementation.VENDOR).value)
    check.metric("implementation_reason", f"a builder of {type(builder).__module__}")


def loaded(builder):
    """Return the object that this builder loads.

    The first use may start a compiler, so the case's timeout is suspended meanwhile.
    """
    with while_compiling():
        return builder.load()


def is_compatible(builder):
    """Return whether this builder is compatible; some builders compile to find out, so the timeout is suspended."""
    with while_compiling():
        return builder.is_compatible()


def _compatible(accelerator, builder):
    found = accelerator.create_op_builder(builder)
    return found if not stands_for_nothing(found) and is_compatible(found) else None

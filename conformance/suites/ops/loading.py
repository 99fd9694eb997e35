"""What an accelerator's builders load, for cases that follow from no specification."""

from __future__ import annotations

from conformance.finding import Refused, environment_lacks
from conformance.process.watchdog import while_compiling


def functions(accelerator, builder):
    """The object that the builder loads. Raises Refused where there is none, or where it says no."""
    found = _compatible(accelerator, builder)
    if found is None:
        raise Refused(f"{builder} says no")
    return loaded(found)


def functions_if_any(accelerator, builder):
    """The same for cases that need a builder and are about something else: without one there is nothing to say."""
    found = _compatible(accelerator, builder)
    if found is None:
        environment_lacks(f"the accelerator has no {builder}")
    return loaded(found)


def loaded(builder):
    """What it loads. Compilers run at first use, in whichever case that is."""
    with while_compiling():
        return builder.load()


def says_yes(builder):
    """Whether it is compatible, for which some builders compile as well."""
    with while_compiling():
        return builder.is_compatible()


def _compatible(accelerator, builder):
    found = accelerator.create_op_builder(builder)
    return found if found is not None and says_yes(found) else None

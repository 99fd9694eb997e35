"""Clean refusals of a probe: the accelerator says no, without a result and without a side effect.

A probe exercises one capability by its effect. It returns if the effect is there. It raises ``Refused``, or lets the
accelerator's own exception through, if the accelerator says no cleanly. It fails an assertion if the accelerator
claims the capability and does not have it. Each capability has one probe, and one for each dtype where claims are
made per dtype.
"""

from __future__ import annotations

from typing import NoReturn

from conformance.accelerators.capabilities import Capability
from conformance.judging.finding import Refused, environment_lacks


def refuse_if_none(value: object, what: str) -> None:
    """Raise Refused if ``value`` is None; ``what`` names it in the message."""
    if value is None:
        raise Refused(f"{what} is None")


def refuse_if_false(answer: object, call: str) -> None:
    """Raise Refused if the flag that ``call`` returned is False.

    Fail an assertion if it is no bool: such a value is neither a yes nor a no.
    """
    assert isinstance(answer, bool), f"{call} returned {answer!r}; it must return a bool"
    if not answer:
        raise Refused(f"{call} is False")


def refuse_on_one_device(declaration: object, capability: Capability) -> NoReturn:
    """End a probe that needs several devices on a machine with one.

    A claim can be neither shown nor refuted there, so the case is skipped. A denial is plausible, so it raises Refused.
    """
    if declaration.supports(capability.cell):
        environment_lacks("this machine shows one device, and the capability needs two")
    raise Refused("device_count() is 1")

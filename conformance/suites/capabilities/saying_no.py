"""How a probe tells a clean "no" from a result.

A probe exercises one capability by its effect. It returns if the effect is there, raises ``Refused`` (or lets the
accelerator's own exception through) if the accelerator says no cleanly, and fails an assertion if the accelerator
pretends. Each capability has one probe, and each dtype where claims are made per dtype.
"""

from __future__ import annotations

from typing import NoReturn

from conformance.accelerators.capabilities import Capability
from conformance.finding import Refused, environment_lacks


def refuse_if_none(value: object, what: str) -> None:
    if value is None:
        raise Refused(f"{what} is None")


def refuse_if_false(answer: object, call: str) -> None:
    """A flag that is not set is a clean no; an answer that is no bool is none at all."""
    assert isinstance(answer, bool), f"{call} answers {answer!r}, which is neither yes nor no"
    if not answer:
        raise Refused(f"{call} is False")


def one_device(declaration: object, capability: Capability) -> NoReturn:
    """With one device a claim about several can neither be shown nor refuted; a denial is plausible."""
    if declaration.supports(capability.cell):
        environment_lacks("one device; this capability is about several")
    raise Refused("device_count() is 1")

"""What a case body says when it knows better than "an assertion failed"."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from conformance.reports.verdict import Reason

T = TypeVar("T")


class Finding(AssertionError):
    """A failure with a reason of its own, raised by a case body."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class EnvironmentLacks(Exception):
    """This machine cannot run the case: too few devices, a missing package. The case is skipped for that."""


class Refused(Exception):
    """A probe saw a clean refusal: the accelerator says no without a result, a crash, or a side effect."""


def report(reason: Reason, message: str) -> NoReturn:
    """End the case as failed for ``reason`` (``stub``, ``fallback``, ``unsafe``, …)."""
    raise Finding(reason, message)


def stub(message: str) -> NoReturn:
    """End the case as failed because what it called takes the call and does nothing; say what has no effect."""
    raise Finding(Reason.STUB, message)


def require(answer: T | None, what: str) -> T:
    """The answer. None where a capability says that there is one is a stub."""
    if answer is None:
        stub(f"{what} is None, although it is declared")
    return answer


def environment_lacks(message: str) -> NoReturn:
    """End the case as skipped because this machine lacks something; say what and how to get it."""
    raise EnvironmentLacks(message)

"""Exceptions by which a case body ends with a reason of its own, and functions that raise them."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from conformance.reports.verdict import Reason as Reason  # for suites, which import nothing of reports

T = TypeVar("T")


class Finding(AssertionError):
    """Failure with a verdict reason, raised by a case body."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class EnvironmentLacks(Exception):
    """Lack of something that the case needs on this machine, such as a package; the case is skipped."""


class Refused(Exception):
    """Clean refusal seen by a probe: an error or a "no", without a result, a crash, or a side effect."""


def report(reason: Reason, message: str) -> NoReturn:
    """Raise the failure of a case for ``reason``, such as ``stub``, ``fallback`` or ``unsafe``."""
    raise Finding(reason, message)


def stub(message: str) -> NoReturn:
    """Fail the case as a stub: a function accepts the call and does nothing. ``message`` names the missing effect."""
    raise Finding(Reason.STUB, message)


def require(answer: T | None, what: str) -> T:
    """Return ``answer``; fail the case as a stub if it is None, although a declared capability promises it."""
    if answer is None:
        stub(f"{what} is None, although it is declared")
    return answer


def environment_lacks(message: str) -> NoReturn:
    """Skip the case; ``message`` names what this machine lacks and how to get it."""
    raise EnvironmentLacks(message)

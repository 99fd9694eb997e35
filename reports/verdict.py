"""Verdicts: three outcomes, each with a reason from a closed set, and the pairs that may occur."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What the matrix shows."""

    PASS = "pass"
    SKIP = "skip"
    FAIL = "fail"

    # Members are singletons. Enum's own way hashes the name each time, which counting 20,000 cases feels.
    __hash__ = object.__hash__


class Reason(Enum):
    """Why a case ended as it did."""

    NATIVE = "native"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"
    UNDECLARED = "undeclared"
    ENVIRONMENT = "environment"
    WAIVED = "waived"
    WRONG = "wrong"
    RAISED = "raised"
    OVER_DECLARED = "over-declared"
    STUB = "stub"
    FALLBACK = "fallback"
    UNSAFE = "unsafe"
    UNDER_DECLARED = "under-declared"
    CRASH = "crash"
    HANG = "hang"
    POISONED = "poisoned"
    DISAGREEMENT = "disagreement"
    CORE_MISSING = "core-missing"
    WAIVER_STALE = "waiver-stale"
    WAIVER_EXPIRED = "waiver-expired"

    __hash__ = object.__hash__


PASS_REASONS = frozenset({Reason.NATIVE, Reason.EMULATED})
SKIP_REASONS = frozenset({Reason.UNSUPPORTED, Reason.UNDECLARED, Reason.ENVIRONMENT, Reason.WAIVED})
#: Differences between declaration and observation. A lenient strictness turns them into notes: an outcome of
#: ``skip`` that keeps the reason, so that the matrix still names the difference.
DIFFERENCE_REASONS = frozenset({Reason.OVER_DECLARED, Reason.STUB, Reason.FALLBACK, Reason.UNDER_DECLARED})
FAIL_REASONS = frozenset(Reason) - PASS_REASONS - SKIP_REASONS | {Reason.UNDECLARED}

_ALLOWED = {
    Outcome.PASS: PASS_REASONS,
    Outcome.SKIP: SKIP_REASONS | DIFFERENCE_REASONS,
    Outcome.FAIL: FAIL_REASONS,
}
_PAIRS = frozenset((outcome, reason) for outcome, reasons in _ALLOWED.items() for reason in reasons)


def check_pair(outcome: Outcome, reason: Reason) -> None:
    """Raise ValueError for an outcome and a reason that cannot occur together."""
    if (outcome, reason) not in _PAIRS:
        raise ValueError(f"a verdict cannot be {outcome.value} with reason {reason.value}")


@dataclass(frozen=True)
class Verdict:
    """How one case ended.

    ``message`` is one or a few plain lines for people; ``metrics`` holds flat numbers and short strings
    (errors against budgets, throughput, counts).
    """

    outcome: Outcome
    reason: Reason
    message: str = ""
    metrics: dict[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_pair(self.outcome, self.reason)

    @property
    def is_note(self) -> bool:
        """A difference that the run's strictness does not count as a failure."""
        return self.outcome is Outcome.SKIP and self.reason in DIFFERENCE_REASONS


def passed(reason: Reason = Reason.NATIVE, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.PASS, reason, message, metrics)


def skipped(reason: Reason, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.SKIP, reason, message, metrics)


def failed(reason: Reason, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.FAIL, reason, message, metrics)

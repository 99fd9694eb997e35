"""Verdicts: three outcomes, each with a reason from a closed set, and the pairs that may occur."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final


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


@dataclass(frozen=True)
class ReasonDoc:
    """When a case ends so, and the next step; empty if there is none."""

    when: str
    mend: str = ""


REASON_DOCS: Final[dict[Reason, ReasonDoc]] = {
    Reason.NATIVE: ReasonDoc("The right result, on the device."),
    Reason.EMULATED: ReasonDoc(
        "The right result, and the declaration says that it is emulated or computed on the host."
    ),
    Reason.UNSUPPORTED: ReasonDoc("Declared unsupported; where the case probes, a clean refusal was seen."),
    Reason.UNDECLARED: ReasonDoc(
        "The declaration is silent. The message carries what a probe saw. With strictness certify it is a failure.",
        "Declare it, one way or the other; conformance suggest proposes how.",
    ),
    Reason.ENVIRONMENT: ReasonDoc(
        "This machine lacks something: a package, a second device, memory, a host reference.",
        "Read the message, and run where it is there. The gate rejects claims that could not run.",
    ),
    Reason.WAIVED: ReasonDoc("It failed as a valid waiver says.", "Fix it before the waiver expires."),
    Reason.WRONG: ReasonDoc(
        "A wrong value, dtype, shape, stride, device, aliasing or order; an input that was changed; nothing compared.",
        "Fix the device.",
    ),
    Reason.RAISED: ReasonDoc("An exception where a result is due.", "Fix the device, or withdraw the claim."),
    Reason.OVER_DECLARED: ReasonDoc(
        "Declared supported, and it ends with “not implemented”, or a member is missing.",
        "Implement it, or withdraw the claim.",
    ),
    Reason.STUB: ReasonDoc(
        "Declared supported, and it answers None or has no effect.", "Implement it, or withdraw the claim."
    ),
    Reason.FALLBACK: ReasonDoc(
        "Computed on the host, and nothing said so.", "Declare it as host, or compute it on the device."
    ),
    Reason.UNSAFE: ReasonDoc(
        "Declared unsupported, yet it answers wrongly, crashes or hangs.", "Raise an error instead."
    ),
    Reason.UNDER_DECLARED: ReasonDoc(
        "Declared unsupported, yet it works. A failure with strictness certify, else a note.", "Claim it."
    ),
    Reason.CRASH: ReasonDoc("The process died. The message carries the stacks.", "Reproduce it with the repro line."),
    Reason.HANG: ReasonDoc("The deadline passed. The message carries the stacks.", "Reproduce it with the repro line."),
    Reason.POISONED: ReasonDoc(
        "After this case the device no longer computed 1 + 1. Cases after it ran again elsewhere.",
        "Reproduce it with the repro line.",
    ),
    Reason.DISAGREEMENT: ReasonDoc("Ranks ended differently.", "Look for the rank whose message differs."),
    Reason.CORE_MISSING: ReasonDoc("Something of the mandatory core is not supported.", "Implement it."),
    Reason.WAIVER_STALE: ReasonDoc("It is waived, and passes.", "Delete the waiver: conformance waivers prune."),
    Reason.WAIVER_EXPIRED: ReasonDoc("It fails, and its waiver has run out.", "Fix it, or renew the waiver."),
}

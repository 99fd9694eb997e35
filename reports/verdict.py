"""Verdicts: three outcomes, each with a reason from a closed set.

Everything that other modules know about a reason stands in its :class:`ReasonFacts`: a new reason is one member here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """Outcome of a case, as the matrix shows it."""

    PASS = "pass"
    SKIP = "skip"
    FAIL = "fail"

    # Members are singletons. Enum's own hash is computed from the name, which is slow for 20,000 cases.
    __hash__ = object.__hash__


_PASS = (Outcome.PASS,)
_SKIP = (Outcome.SKIP,)
_FAIL = (Outcome.FAIL,)


@dataclass(frozen=True)
class ReasonFacts:
    """Facts about one reason.

    ``outcomes`` are those that it may occur with, the usual one first. ``when`` and ``fix`` are sentences for people;
    ``fix`` is the next step, empty if there is none.

    ``claimed``: the case counts among the claimed ones. ``executed``: something ran as claimed.
    ``is_difference``: a lenient strictness turns the failure into a note, which is a skip that keeps the reason.
    ``contradicts``: what was seen contradicts the declaration. ``is_waivable``: a waiver may name it.
    ``is_internal``: the suite itself failed, and nothing is known about the device.
    ``made_by_waiver``: it tells what a waiver made of another reason.
    ``mark`` is the name of the page's symbol for cells in which nothing passed and nothing failed.
    ``lies`` says in the gate's sentences what is false in the declaration, for one case and for several.
    """

    outcomes: tuple[Outcome, ...]
    when: str
    fix: str = ""
    claimed: bool = True
    executed: bool = True
    is_difference: bool = False
    contradicts: bool = False
    is_waivable: bool = True
    made_by_waiver: bool = False
    is_internal: bool = False
    mark: str = "nodata"
    lies: tuple[str, str] | None = None


class Reason(Enum):
    """Reason of a verdict. The value is its name in reports; ``facts`` is everything else."""

    _value_: str
    facts: ReasonFacts

    # The default is for type checkers, which take ``Reason("wrong")`` for a call of this.
    def __new__(cls, name: str, facts: ReasonFacts = ReasonFacts(_FAIL, "")) -> Reason:
        member = object.__new__(cls)
        member._value_, member.facts = name, facts
        return member

    NATIVE = "native", ReasonFacts(_PASS, "The device computed the right result.")
    EMULATED = (
        "emulated",
        ReasonFacts(
            _PASS, "The result is right, and the declaration says that it is emulated or computed on the host."
        ),
    )
    UNSUPPORTED = (
        "unsupported",
        ReasonFacts(
            _SKIP,
            "The capability, or an operator that the case calls, is declared unsupported. If the case used it, the "
            "device refused.",
            claimed=False,
            executed=False,
            mark="refused",
        ),
    )
    UNDECLARED = (
        "undeclared",
        ReasonFacts(
            (Outcome.SKIP, Outcome.FAIL),
            "The declaration does not mention the capability, or an operator that the case calls. If the case ran, "
            "the message says what happened. With strictness certify this is a failure.",
            "Declare it as supported or unsupported. conformance suggest prints the line.",
            claimed=False,
            executed=False,
            mark="undeclared",
        ),
    )
    ENVIRONMENT = (
        "environment",
        ReasonFacts(
            _SKIP,
            "Something that the case needs is missing: a package, a device, memory, or a result of the host.",
            "Read the message, and run on a machine that has it. The gate rejects claimed cases that did not run.",
            executed=False,
        ),
    )
    WAIVED = (
        "waived",
        ReasonFacts(
            _SKIP,
            "The case failed in the way that a valid waiver names.",
            "Fix the failure before the waiver expires.",
            made_by_waiver=True,
            mark="waived",
        ),
    )
    WRONG = (
        "wrong",
        ReasonFacts(
            _FAIL,
            "A value, dtype, shape, stride, device, alias or order is wrong. Or an input was changed. "
            "Or the case compared nothing.",
            "Fix the backend.",
        ),
    )
    RAISED = (
        "raised",
        ReasonFacts(_FAIL, "The case ended with an exception.", "Fix the backend, or withdraw the claim."),
    )
    OVER_DECLARED = (
        "over-declared",
        ReasonFacts(
            (Outcome.FAIL, Outcome.SKIP),
            "The capability is declared supported, but it is not implemented or the device refuses it.",
            "Implement it, or withdraw the claim.",
            is_difference=True,
            contradicts=True,
            lies=("is declared supported and not there", "are declared supported and not there"),
        ),
    )
    STUB = (
        "stub",
        ReasonFacts(
            (Outcome.FAIL, Outcome.SKIP),
            "The capability is declared supported, but the call returns None or has no effect.",
            "Implement it, or withdraw the claim.",
            is_difference=True,
            contradicts=True,
            lies=("is declared supported and does nothing", "are declared supported and do nothing"),
        ),
    )
    FALLBACK = (
        "fallback",
        ReasonFacts(
            (Outcome.FAIL, Outcome.SKIP),
            "The result was computed on the host, but the declaration does not say so.",
            "Declare it as host, or compute it on the device.",
            is_difference=True,
            contradicts=True,
            lies=(
                "is computed on the host without being declared so",
                "are computed on the host without being declared so",
            ),
        ),
    )
    UNSAFE = (
        "unsafe",
        ReasonFacts(
            _FAIL,
            "The capability is declared unsupported, but its use gives a wrong result, a crash or a hang.",
            "Let the backend raise an error instead.",
            contradicts=True,
            lies=(
                "is declared unsupported and answers wrongly, crashes or hangs",
                "are declared unsupported and answer wrongly, crash or hang",
            ),
        ),
    )
    UNDER_DECLARED = (
        "under-declared",
        ReasonFacts(
            (Outcome.FAIL, Outcome.SKIP),
            "The capability is declared unsupported, but it works. "
            "With strictness certify this is a failure, otherwise a note.",
            "Declare it as supported.",
            claimed=False,
            is_difference=True,
            contradicts=True,
        ),
    )
    CRASH = (
        "crash",
        ReasonFacts(_FAIL, "The process died. The message contains the stacks.", "Reproduce it with the repro line."),
    )
    HANG = (
        "hang",
        ReasonFacts(
            _FAIL,
            "The case timed out. The message contains the stacks.",
            "Reproduce it with the repro line.",
        ),
    )
    POISONED = (
        "poisoned",
        ReasonFacts(
            _FAIL,
            "After this case, the device could not compute 1 + 1 correctly. Later cases run in a new process.",
            "Reproduce it with the repro line.",
        ),
    )
    DISAGREEMENT = (
        "disagreement",
        ReasonFacts(
            _FAIL,
            "Some ranks skipped the case and others did not. Or values that must be equal on all ranks differ.",
            "Look for the rank whose message differs.",
        ),
    )
    SUITE_ERROR = (
        "suite-error",
        ReasonFacts(
            _FAIL,
            "The suite itself failed: an exception of its own code, not of the device. The case says nothing about the "
            "device, and the run ends with exit status 3.",
            "Report it to this project, with the message and the repro line.",
            claimed=False,
            is_internal=True,
            is_waivable=False,
        ),
    )
    CORE_MISSING = (
        "core-missing",
        ReasonFacts(
            _FAIL,
            "A capability of the mandatory core is not supported.",
            "Implement it.",
            contradicts=True,
            is_waivable=False,
        ),
    )
    WAIVER_STALE = (
        "waiver-stale",
        ReasonFacts(
            _FAIL,
            "A waived case passes.",
            "Delete the waiver: conformance waivers prune.",
            is_waivable=False,
            made_by_waiver=True,
        ),
    )
    WAIVER_EXPIRED = (
        "waiver-expired",
        ReasonFacts(
            _FAIL,
            "The case fails, and its waiver has expired.",
            "Fix the failure, or renew the waiver.",
            is_waivable=False,
            made_by_waiver=True,
        ),
    )

    __hash__ = object.__hash__


#: Differences between declaration and observation.
DIFFERENCE_REASONS = frozenset(reason for reason in Reason if reason.facts.is_difference)


def check_pair(outcome: Outcome, reason: Reason) -> None:
    """Raise ValueError for an outcome and a reason that cannot occur together."""
    if outcome not in reason.facts.outcomes:
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


def passed(reason: Reason = Reason.NATIVE, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.PASS, reason, message, metrics)


def skipped(reason: Reason, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.SKIP, reason, message, metrics)


def failed(reason: Reason, message: str = "", **metrics: float | int | str) -> Verdict:
    return Verdict(Outcome.FAIL, reason, message, metrics)

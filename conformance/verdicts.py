"""From what was declared and what was seen to a verdict. Every function here is a function of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.declaration import Claim, Declaration, Detail, State
from conformance.case import Case, Level
from conformance.reports.verdict import DIFFERENCE_REASONS, Outcome, Reason, Verdict, failed, passed, skipped
from conformance.run_options import Strictness


class Seen(Enum):
    """What running a case's body showed."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_IMPLEMENTED = "not implemented"
    REFUSED = "refused"
    RAISED = "raised"
    FINDING = "finding"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Observation:
    """What was seen, in a sentence; ``reason`` only for a finding that names its own."""

    seen: Seen
    message: str = ""
    reason: Reason | None = None


class Observed(Exception):
    """What was seen elsewhere, on its way to where it is judged."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation.message)
        self.observation = observation


def gate(case: Case, declaration: Declaration) -> Verdict | None:
    """The verdict of a case that need not run, or None. Core cases and adaptive ones always run."""
    if case.adaptive or case.level is Level.CORE:
        return None
    for cell in case.requires:
        claim = declaration.claim(cell, in_reference=case.in_reference)
        if claim.state is State.UNSUPPORTED:
            return skipped(Reason.UNSUPPORTED, f"{cell} is declared unsupported: {claim.reason}")
        if claim.state is State.UNDECLARED and not _is_core(cell):
            return skipped(Reason.UNDECLARED, f"{cell} is not declared")
    return None


def too_few_devices(case: Case, devices: int, *, shared: bool) -> Verdict | None:
    """The verdict of a case that wants a device for each of its ranks where there are fewer, or None."""
    ranks = case.world_size or 1
    if shared or ranks <= devices:
        return None
    return skipped(Reason.ENVIRONMENT, f"{ranks} ranks need a device each, and there are {devices}")


def too_few_ranks(case: Case, provided: int) -> Verdict | None:
    """The verdict of a case that wants more ranks than torchrun has started, or None."""
    ranks = case.world_size or 1
    if ranks <= provided:
        return None
    return skipped(Reason.ENVIRONMENT, f"{ranks} ranks are wanted, and torchrun provides {provided}")


def _is_core(cell: Cell) -> bool:
    known = VOCABULARY.get(cell.subject)
    return known is not None and known.core


def claim_of(case: Case, declaration: Declaration) -> Claim:
    """The claim an adaptive case is judged by: that of its one required cell."""
    (cell,) = case.requires
    return declaration.claim(cell, in_reference=case.in_reference)


def judge(case: Case, declaration: Declaration, seen: Observation, strictness: Strictness) -> Verdict:
    """Declared × observed, then the run's strictness."""
    if seen.seen is Seen.ENVIRONMENT:
        return skipped(Reason.ENVIRONMENT, seen.message)
    verdict = _judge_adaptive(case, declaration, seen) if case.adaptive else _judge_check(case, declaration, seen)
    return with_strictness(verdict, strictness)


def _judge_adaptive(case: Case, declaration: Declaration, seen: Observation) -> Verdict:
    claim = claim_of(case, declaration)
    (cell,) = case.requires
    if claim.state is State.UNDECLARED and _is_core(cell):
        return _judge_supported(case, [claim], seen)
    if claim.state is State.UNDECLARED:
        return skipped(Reason.UNDECLARED, f"{cell} is not declared; probe: {_finding(seen)}", probe=_word(seen))
    if claim.state is State.UNSUPPORTED:
        return _judge_unsupported(cell, claim, seen)
    return _judge_supported(case, [claim], seen)


def _judge_unsupported(cell: Cell, claim: Claim, seen: Observation) -> Verdict:
    if seen.seen is Seen.RIGHT:
        return failed(Reason.UNDER_DECLARED, f"{cell} is declared unsupported ({claim.reason}) but works")
    if seen.reason is Reason.FALLBACK:
        message = f"{cell} is declared unsupported ({claim.reason}) but works, on the host: {seen.message}"
        return failed(Reason.UNDER_DECLARED, message, probe=_word(seen))
    # Doing nothing is how members of this interface say no: nothing comes back that could be taken for a result.
    if seen.seen in (Seen.WRONG, Seen.FINDING) and seen.reason is not Reason.STUB:
        return failed(Reason.UNSAFE, f"{cell} is declared unsupported, yet it answers, and wrongly: {seen.message}")
    message = f"{cell}: {claim.reason}; confirmed: {_finding(seen)}"
    return skipped(Reason.UNSUPPORTED, message, probe=_word(seen))


def _judge_check(case: Case, declaration: Declaration, seen: Observation) -> Verdict:
    claims = [declaration.claim(cell, in_reference=case.in_reference) for cell in case.requires]
    return _judge_supported(case, claims, seen)


def _judge_supported(case: Case, claims: Sequence[Claim], seen: Observation) -> Verdict:
    details = {claim.detail for claim in claims}
    if seen.reason is Reason.FALLBACK and Detail.HOST in details:
        return passed(Reason.EMULATED)  # as declared; a case reports this only when all else is right
    if seen.seen is Seen.RIGHT:
        return passed(Reason.EMULATED if details & {Detail.EMULATED, Detail.HOST} else Reason.NATIVE)
    if seen.seen is Seen.FINDING:
        return failed(seen.reason or Reason.WRONG, seen.message)
    if seen.seen is Seen.WRONG:
        return failed(Reason.WRONG, seen.message)
    if seen.seen in (Seen.NOT_IMPLEMENTED, Seen.REFUSED):
        reason = Reason.CORE_MISSING if case.level is Level.CORE else Reason.OVER_DECLARED
        return failed(reason, seen.message)
    return failed(Reason.RAISED, seen.message)


def judge_death(claim: State | None, reason: Reason, message: str, strictness: Strictness) -> Verdict:
    """The verdict of a case whose process died (``crash``), never came back (``hang``), or broke the device.

    ``claim`` is the declared state of an adaptive case: a probe of a silence stays a silence, whatever it found.
    """
    if claim is State.UNDECLARED:
        text = f"not declared; probe: {reason.value}: {message}"
        return with_strictness(skipped(Reason.UNDECLARED, text, probe=reason.value), strictness)
    if claim is State.UNSUPPORTED:
        return failed(Reason.UNSAFE, f"declared unsupported, yet it ends in a {reason.value}: {message}")
    return failed(reason, message)


def with_strictness(verdict: Verdict, strictness: Strictness) -> Verdict:
    """Bring-up turns differences into notes, ci only modesty, certify none; certify also fails silence."""
    if strictness is Strictness.CERTIFY:
        if verdict.outcome is Outcome.SKIP and verdict.reason is Reason.UNDECLARED:
            return Verdict(Outcome.FAIL, Reason.UNDECLARED, verdict.message, verdict.metrics)
        return verdict
    lenient = DIFFERENCE_REASONS if strictness is Strictness.BRING_UP else {Reason.UNDER_DECLARED}
    if verdict.outcome is Outcome.FAIL and verdict.reason in lenient:
        return Verdict(Outcome.SKIP, verdict.reason, verdict.message, verdict.metrics)
    return verdict


def _word(seen: Observation) -> str:
    """What a probe saw, as ``conformance suggest`` reads it."""
    return seen.reason.value if seen.reason else seen.seen.value


def _finding(seen: Observation) -> str:
    return f"{seen.seen.value}{': ' + seen.message if seen.message else ''}"

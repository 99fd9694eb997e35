"""Verdicts from a declaration and an observation. Pure functions of values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.declaration import Claim, Declaration, Detail, State
from conformance.accelerators.members import judges
from conformance.judging.observation import Observation, Seen
from conformance.plan.case import Case, Level
from conformance.plan.run_options import Strictness
from conformance.reports.verdict import DIFFERENCE_REASONS, Outcome, Reason, Verdict, failed, passed, skipped


def gate(case: Case, declaration: Declaration, strictness: Strictness) -> Verdict | None:
    """Return the verdict of a case that need not run, or None. Core cases and adaptive cases always run."""
    if case.adaptive or case.level is Level.CORE:
        return None
    for cell in case.requires:
        claim = declaration.claim(cell, in_reference=case.in_reference)
        if claim.state is State.UNSUPPORTED or (claim.state is State.UNDECLARED and not _is_core(cell)):
            return not_claimed(cell, claim, strictness)
    return None


def not_claimed(cell: Cell, claim: Claim, strictness: Strictness) -> Verdict:
    """Return the verdict of a case that needs a cell which the device does not claim."""
    if claim.state is State.UNSUPPORTED:
        return skipped(Reason.UNSUPPORTED, f"{cell} is declared unsupported: {claim.reason}")
    return with_strictness(skipped(Reason.UNDECLARED, f"{cell} is not declared"), strictness)


def too_few_devices(case: Case, devices: int, *, shared: bool) -> Verdict | None:
    """Return the verdict of a case that needs more devices than there are, one for each rank, or None."""
    ranks = case.world_size or 1
    if shared or ranks <= devices:
        return None
    return skipped(Reason.ENVIRONMENT, f"{ranks} ranks need a device each, and there are {devices}")


def too_few_ranks(case: Case, provided: int) -> Verdict | None:
    """Return the verdict of a case that needs more ranks than torchrun has started, or None."""
    ranks = case.world_size or 1
    if ranks <= provided:
        return None
    return skipped(Reason.ENVIRONMENT, f"{ranks} ranks are needed, and torchrun provides {provided}")


def _is_core(cell: Cell) -> bool:
    known = VOCABULARY.get(cell.subject)
    return known is not None and known.core


def claim_of(case: Case, declaration: Declaration) -> Claim:
    """Return the claim by which an adaptive case is judged: that of its one required cell."""
    (cell,) = case.requires
    return declaration.claim(cell, in_reference=case.in_reference)


def judge(case: Case, declaration: Declaration, observation: Observation, strictness: Strictness) -> Verdict:
    """Judge an observation by the declaration, and then by the run's strictness."""
    # With certify, an undeclared cell is a failure also on a machine that cannot probe it.
    if observation.seen is Seen.ENVIRONMENT and not (
        strictness is Strictness.CERTIFY and _is_undeclared(case, declaration)
    ):
        return skipped(Reason.ENVIRONMENT, observation.message)
    if observation.seen is Seen.SUITE_ERROR:
        return failed(Reason.SUITE_ERROR, observation.message)  # whatever is declared: the device was not judged
    verdict = (
        _judge_adaptive(case, declaration, observation)
        if case.adaptive
        else _judge_check(case, declaration, observation)
    )
    if verdict.outcome is Outcome.FAIL and _only_uses(case, observation.missing):
        return skipped(Reason.ENVIRONMENT, f"{observation.message}; other cases judge that, and this one needs it")
    if verdict.outcome is Outcome.FAIL and _is_denied_count(observation.missing, declaration):
        return skipped(Reason.ENVIRONMENT, f"{observation.message}; {_BYTE_COUNTS} is declared unsupported")
    return with_strictness(verdict, strictness)


#: Capability of byte counts, which DeepSpeed's interface asks for, and the names of functions that give them.
_BYTE_COUNTS, _COUNTING = "memory.stats", re.compile(r"(max_)?memory_|mem_get_info|reset_\w*memory")


def _is_denied_count(missing: str, declaration: Declaration) -> bool:
    """Return whether a missing member counts bytes, which the device is declared not to do."""
    return bool(_COUNTING.match(missing)) and declaration.claim(Cell(_BYTE_COUNTS)).state is State.UNSUPPORTED


def _only_uses(case: Case, missing: str) -> bool:
    """Return whether a missing member is one that other cases are about, so that this one has shown nothing."""
    return judges(missing, (cell.subject for cell in case.requires), case.id) is False


def _is_undeclared(case: Case, declaration: Declaration) -> bool:
    """Return whether nothing is declared about the cell of an adaptive case. The core needs no declaration."""
    if not case.adaptive or _is_core(case.requires[0]):
        return False
    return claim_of(case, declaration).state is State.UNDECLARED


def _judge_adaptive(case: Case, declaration: Declaration, observation: Observation) -> Verdict:
    claim = claim_of(case, declaration)
    (cell,) = case.requires
    if claim.state is State.UNDECLARED and _is_core(cell):
        return _judge_supported(case, [claim], observation)
    if claim.state is State.UNDECLARED:
        return skipped(
            Reason.UNDECLARED, f"{cell} is not declared; probe: {_sentence(observation)}", probe=_word(observation)
        )
    if claim.state is State.UNSUPPORTED:
        return _judge_unsupported(cell, claim, observation)
    return _judge_supported(case, [claim], observation)


def _judge_unsupported(cell: Cell, claim: Claim, observation: Observation) -> Verdict:
    if observation.seen is Seen.RIGHT:
        return failed(Reason.UNDER_DECLARED, f"{cell} is declared unsupported ({claim.reason}) but works")
    if observation.reason is Reason.FALLBACK:
        message = f"{cell} is declared unsupported ({claim.reason}) but works, on the host: {observation.message}"
        return failed(Reason.UNDER_DECLARED, message, probe=_word(observation))
    # Doing nothing is a valid refusal in this interface: the caller gets nothing that looks like a result.
    if observation.seen in (Seen.WRONG, Seen.FINDING) and observation.reason is not Reason.STUB:
        return failed(
            Reason.UNSAFE, f"{cell} is declared unsupported, yet it answers, and wrongly: {observation.message}"
        )
    message = f"{cell}: {claim.reason}; confirmed: {_sentence(observation)}"
    return skipped(Reason.UNSUPPORTED, message, probe=_word(observation))


def _judge_check(case: Case, declaration: Declaration, observation: Observation) -> Verdict:
    claims = [declaration.claim(cell, in_reference=case.in_reference) for cell in case.requires]
    return _judge_supported(case, claims, observation)


def _judge_supported(case: Case, claims: Sequence[Claim], observation: Observation) -> Verdict:
    details = {claim.detail for claim in claims}
    if observation.reason is Reason.FALLBACK and Detail.HOST in details:
        return passed(Reason.EMULATED)  # as declared; a case reports a fallback only if everything else is right
    if observation.seen is Seen.RIGHT:
        return passed(Reason.EMULATED if details & {Detail.EMULATED, Detail.HOST} else Reason.NATIVE)
    if observation.seen is Seen.FINDING:
        return failed(observation.reason or Reason.WRONG, observation.message)
    if observation.seen is Seen.WRONG:
        return failed(Reason.WRONG, observation.message)
    if observation.seen in (Seen.NOT_IMPLEMENTED, Seen.REFUSED):
        claimed = Reason.OVER_DECLARED if case.requires else Reason.RAISED  # a case without needs has no claim
        reason = Reason.CORE_MISSING if case.level is Level.CORE else claimed
        return failed(reason, observation.message)
    return failed(Reason.RAISED, observation.message)


def judge_death(claim: State | None, reason: Reason, message: str, strictness: Strictness) -> Verdict:
    """Return the verdict of a case whose process died (``crash``), timed out (``hang``), or broke the device.

    ``claim`` is the declared state of an adaptive case. An undeclared cell stays undeclared, whatever its probe found.
    """
    if claim is State.UNDECLARED:
        text = f"not declared; probe: {reason.value}: {message}"
        return with_strictness(skipped(Reason.UNDECLARED, text, probe=reason.value), strictness)
    if claim is State.UNSUPPORTED:
        return failed(Reason.UNSAFE, f"declared unsupported, yet it ends in a {reason.value}: {message}")
    return failed(reason, message)


def with_strictness(verdict: Verdict, strictness: Strictness) -> Verdict:
    """Apply the strictness to a verdict.

    ``bring-up`` turns every difference between declaration and observation into a note, ``ci`` only an
    under-declaration, ``certify`` none; ``certify`` also fails an undeclared cell.
    """
    if strictness is Strictness.CERTIFY:
        if verdict.outcome is Outcome.SKIP and verdict.reason is Reason.UNDECLARED:
            return Verdict(Outcome.FAIL, Reason.UNDECLARED, verdict.message, verdict.metrics)
        return verdict
    lenient = DIFFERENCE_REASONS if strictness is Strictness.BRING_UP else {Reason.UNDER_DECLARED}
    if verdict.outcome is Outcome.FAIL and verdict.reason in lenient:
        return Verdict(Outcome.SKIP, verdict.reason, verdict.message, verdict.metrics)
    return verdict


def _word(observation: Observation) -> str:
    """Return what a probe found, in the form that ``conformance suggest`` reads."""
    return observation.reason.value if observation.reason else observation.seen.value


def _sentence(observation: Observation) -> str:
    return f"{observation.seen.value}{': ' + observation.message if observation.message else ''}"

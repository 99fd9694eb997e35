"""G20: every verdict carries the evidence of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from conformance.reports.breadth import IMPLEMENTATION, KERNEL_ORIGINS, WHOSE_KERNEL, runs_a_kernel
from conformance.reports.challenge import ANSWER, MINIMUM_SHARE, answering, has_answer
from conformance.reports.gate.command_line import is_known
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.groups import CaseGroup
from conformance.reports.model import PROCESSES, CaseRecord
from conformance.reports.verdict import Outcome


@dataclass(frozen=True)
class Proof:
    """Evidence of passed cases of one kind: to which groups it applies, and whether a case lacks it.

    ``lack`` ends the sentence of the finding. ``newer``: reports of format 1 do not have it.
    """

    lack: str
    applies: Callable[[CaseGroup], bool]
    is_missing: Callable[[CaseRecord], bool]
    newer: bool = False


#: Kinds of passed cases, and what each of them always has.
PROOFS: Final = (
    Proof(
        "without the number of its comparisons (comparisons)",
        lambda group: group.area == "operators",
        lambda case: "comparisons" not in case.metrics,
    ),
    Proof(
        "without its error as a part of its bound (error_of_bound)",
        lambda group: group.area == "modules" and group.first.tier == "unit",
        lambda case: "error_of_bound" not in case.metrics,
    ),
    Proof(
        f"without the origin of its kernel ({IMPLEMENTATION})",
        lambda group: group.area in WHOSE_KERNEL,
        lambda case: runs_a_kernel(case) and case.metrics.get(IMPLEMENTATION) not in KERNEL_ORIGINS[:-1],
    ),
    Proof(
        f"without the processes of all of its ranks ({PROCESSES})",
        lambda _: True,
        lambda case: case.metrics.get(PROCESSES, 1) != case.ranks,
        newer=True,
    ),
)


def check_proofs(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G20: passed cases without the evidence of their kind, and a challenge without answers."""
    passed = [group for group in evidence.report.groups if group.outcome is Outcome.PASS]
    for proof in PROOFS:
        if proof.newer and not is_known(evidence.report):
            continue
        lacking = [
            case.id for group in passed if proof.applies(group) for case in group.cases if proof.is_missing(case)
        ]
        if lacking:
            yield reject("G20", f"{counted(len(lacking), 'case')} passed {proof.lack}: {named(lacking)}.", lacking)
    yield from _check_answers(evidence)


def _check_answers(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject a run with a challenge that keeps hardly any answers: nobody could check its results."""
    report = evidence.report
    if not report.run.invocation.challenge or not is_known(report):
        return
    asked = answering(report)
    silent = [case.id for case in asked if not has_answer(case)]
    if asked and len(asked) - len(silent) < MINIMUM_SHARE * len(asked):
        sentence = f"{len(silent)} of {counted(len(asked), 'case')} passed with a challenge and without an {ANSWER}"
        yield reject("G20", f"{sentence}: {named(silent)}.", silent)


RULES = (
    Rule(
        "G20",
        title="missing evidence",
        requirement="Every passed case has the evidence of its kind: an operator its comparisons, a module its error, "
        "a kernel its origin, a case on ranks its processes. A run with a challenge has answers.",
        why="A verdict without evidence is a claim. Deleting the evidence must not be better than showing it.",
        fix="Send the file as the run wrote it.",
        check=check_proofs,
    ),
)

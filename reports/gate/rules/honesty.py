"""G08: the declaration is true, and no verdict contradicts it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from conformance.base.claim_lookup import SUPPORTED, UNDECLARED, UNSUPPORTED
from conformance.reports.calls import NEEDS
from conformance.reports.declaration.claims import self_contradiction
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.groups import CaseGroup
from conformance.reports.matrix import DTYPE_ORDER
from conformance.reports.model import CaseRecord, DeclaredCell
from conformance.reports.verdict import Outcome, Reason


def check_honesty(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G08: false claims, and verdicts that contradict the declaration."""
    if contradiction := self_contradiction(evidence.report, evidence.claims):
        yield reject("G08", f"The declaration {contradiction}")
    yield from _check_declaration(evidence)
    lies: dict[Reason, list[str]] = defaultdict(list)
    odd: dict[str, list[str]] = defaultdict(list)
    for group in evidence.report.groups:
        if group.reason.facts.lies:  # also if a lenient run only noted them
            lies[group.reason] += [case.id for case in group.cases if case.id not in evidence.waiver_outcome.waived]
        for contradiction, ids in _contradictions(group, evidence):
            odd[contradiction] += ids
    for reason, ids in lies.items():
        if ids and reason.facts.lies:
            what = reason.facts.lies[len(ids) > 1]
            yield reject("G08", f"{counted(len(ids), 'case')} {what} ({reason.value}): {named(ids)}.", ids)
    for contradiction, ids in odd.items():
        yield reject("G08", f"{counted(len(ids), 'case')} {contradiction}: {named(ids)}.", ids)


def _check_declaration(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject claims in words that no declaration has, and a denial of the core."""
    cells = evidence.report.declaration.cells
    if odd := [
        claim.cell or "(empty)" for claim in cells if not _is_cell(claim.cell) or claim.detail not in _details(claim)
    ]:
        yield reject("G08", f"{counted(len(odd), 'claim')} cannot be declared in these words: {named(odd)}.", odd)
    if silent := [claim.cell for claim in cells if claim.state == UNSUPPORTED and not claim.reason.strip()]:
        yield reject(
            "G08", f"{counted(len(silent), 'cell is', 'cells are')} denied without a reason: {named(silent)}.", silent
        )
    if twice := [cell for cell, number in Counter(claim.cell for claim in cells).items() if number > 1]:
        yield reject(
            "G08", f"{counted(len(twice), 'cell is', 'cells are')} claimed more than once: {named(twice)}.", twice
        )
    if denied := sorted(cell for cell in evidence.core_cells if evidence.claims.find(cell).state == UNSUPPORTED):
        yield reject("G08", f"The mandatory core cannot be declared unsupported: {named(denied)}.", denied)


def _is_cell(text: str) -> bool:
    """Return whether a claim can name this cell: its axes are dtypes and a mode, or patterns of them."""
    found = _CELL.fullmatch(text)
    parts = re.split("[-,]", found[1]) if found and found[1] else ()
    return found is not None and all("*" in part or part in _AXES for part in parts)


def _details(claim: DeclaredCell) -> frozenset[str]:
    return _DETAILS.get(claim.state, frozenset())


def _contradictions(group: CaseGroup, evidence: GateEvidence) -> Iterator[tuple[str, list[str]]]:
    """Return contradictions of verdicts and declaration: the middle of a sentence, and the ids of the cases."""
    if group.outcome is Outcome.PASS:
        yield from _contradicted_passes(group, evidence)
    elif group.outcome is Outcome.SKIP and evidence.report.run.strictness == "certify" and _is_lenient(group.reason):
        yield f"skipped as {group.reason.value} in a run with strictness certify", [case.id for case in group.cases]
    elif group.outcome is Outcome.SKIP and group.reason in _STATES_OF:
        state = _STATES_OF[group.reason]
        if otherwise := [case.id for case in group.cases if state != _deciding_state(case, evidence)]:
            yield f"skipped as {group.reason.value} although the declaration says otherwise", otherwise


def _contradicted_passes(group: CaseGroup, evidence: GateEvidence) -> Iterator[tuple[str, list[str]]]:
    """Return contradictions of passed cases: what they require is denied, not claimed, or claimed in another way."""
    denied, silent, otherwise = [], [], []
    core = evidence.core_cells
    expects_emulation = group.reason is Reason.EMULATED
    for case in group.cases:
        found = [evidence.claims.find(cell, case.in_reference) for cell in case.requires]
        states = {claim.state for claim in found}
        # Cases of the core run whatever is declared. The core's cells need no claim.
        if group.level != "core" and UNSUPPORTED in states:
            denied.append(case.id)
        elif (
            group.level != "core"
            and UNDECLARED in states
            and any(
                claim.state == UNDECLARED and cell not in core for claim, cell in zip(found, case.requires, strict=True)
            )
        ):
            silent.append(case.id)
        elif any(claim.detail in _NOT_NATIVE for claim in found) is not expects_emulation:
            otherwise.append(case.id)
    if denied:
        yield "passed although the declaration denies a required cell", denied
    if silent:
        yield "passed although the declaration does not claim a required cell", silent
    if otherwise:
        yield f"passed as {group.reason.value} although the declaration says otherwise", otherwise


def _is_lenient(reason: Reason) -> bool:
    """Return whether strictness certify makes a failure of every skip with this reason."""
    return reason is Reason.UNDECLARED or reason.facts.is_difference


_STATES_OF: Final = {
    Reason.UNSUPPORTED: UNSUPPORTED,
    Reason.UNDECLARED: UNDECLARED,
    # Only a cell that is declared unsupported can work beyond its declaration.
    Reason.UNDER_DECLARED: UNSUPPORTED,
}
#: A cell or a pattern of cells, with its axes. A bare star would claim everything.
_CELL: Final = re.compile(r"[A-Za-z_][\w.*-]*(?:\[([\w*.,-]+)\])?", re.ASCII)
_AXES: Final = frozenset({*DTYPE_ORDER, "inference", "training"})
#: Details of claims that are not computed natively.
_NOT_NATIVE: Final = frozenset({"emulated", "host"})
#: Details that a claim of each state may have.
_DETAILS: Final = {
    SUPPORTED: frozenset({"", "native", *_NOT_NATIVE}),
    UNSUPPORTED: frozenset({"", "hardware", "not-yet"}),
}


def _deciding_state(case: CaseRecord, evidence: GateEvidence) -> str:
    """Return the state of the first needed cell that is not claimed: it decides why a case is skipped.

    A case needs the cells that it requires, and that of the operator whose call ended it.
    """
    for cell in (*case.requires, *_called(case)):
        state = evidence.claims.find(cell, case.in_reference).state
        if state == UNSUPPORTED or (state != SUPPORTED and cell not in evidence.core_cells):
            return UNSUPPORTED if state == UNSUPPORTED else UNDECLARED
    return SUPPORTED


def _called(case: CaseRecord) -> Iterator[str]:
    """Yield the cell of the operator whose call ended the case. A case of operators needs none but its own."""
    cell = str(case.metrics.get(NEEDS, ""))
    if case.area != "operators" and cell.startswith("operators.") and _is_cell(cell) and "*" not in cell:
        yield cell


RULES = (
    Rule(
        "G08",
        title="false claims",
        requirement="No case is over-declared, a stub, a silent fallback or unsafe. No verdict contradicts the "
        "declaration.",
        why="A support table is useful only if its entries are true.",
        fix="Correct the declaration with: conformance suggest REPORT.",
        check=check_honesty,
    ),
)

"""Corrections: the claims that match the verdicts of a run.

Only the case that is judged against a claim corrects it. Wrong results, crashes and hangs are defects rather than false
claims: a device that answers wrongly is unsafe even if it is declared unsupported. They are listed, and claims stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from conformance.reports.calls import REFUSING
from conformance.reports.model import CaseRecord, DeclaredCell, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome, Reason

SUPPORTED, UNSUPPORTED = "supported", "unsupported"
_LONGEST_EVIDENCE = 100
#: Metric with the observation of an undeclared cell's probe.
PROBE = "probe"
#: Observations that mean: the capability is missing.
NOT_THERE = frozenset({"not implemented", "refused", "raised", Reason.STUB.value})
#: Observations that mean: there is a bug.
BROKEN = frozenset(reason.value for reason in (Reason.WRONG, Reason.CRASH, Reason.HANG, Reason.POISONED))


class CorrectionKind(Enum):
    """Kind of a correction. The value is its heading for people."""

    WITHDRAWN = "withdrawn: declared supported, and not there"
    RAISED = "withdrawn: declared supported, and ends with an exception; keep the claim if that is a bug"
    ON_HOST = "declared as computed on the host: it is, and nothing said so"
    CLAIMED = "claimed: it works, and was denied or not declared"
    DENIED = "denied: not declared, and refused when it was probed"


@dataclass(frozen=True)
class Correction:
    """Correction of one cell: the true claim, and the case that shows it."""

    kind: CorrectionKind
    claim: DeclaredCell
    case: str
    evidence: str

    @property
    def cell(self) -> str:
        return self.claim.cell


@dataclass(frozen=True)
class Defect:
    """Failure that no change of the declaration fixes."""

    case: str
    reason: Reason
    message: str


@dataclass(frozen=True)
class Corrections:
    """Corrections and defects of one run. ``judged`` counts the cases that were judged against their claim."""

    judged: int
    corrections: tuple[Correction, ...]
    defects: tuple[Defect, ...]


def correct(report: Report, *, deny_silence: bool | None = None, core: Collection[str] = frozenset()) -> Corrections:
    """Return the corrections that follow from the report's verdicts.

    ``deny_silence`` tells whether an undeclared cell that was refused is denied. By default it is denied only if the
    strictness of the run made a failure of it. ``core`` are the cells that no declaration can deny: a case that needs
    one and fails shows a defect of what it tests, and never that the device lacks the cell.
    """
    judges = [case for case in report.cases if case.adaptive]
    found = [one for case in judges if (one := _by_its_claim(case, deny_silence)) and one.cell not in core]
    witnessed = {cell for case in judges for cell in case.requires}
    corrected = {correction.cell for correction in found if correction.kind is not CorrectionKind.CLAIMED}
    rest = [case for case in report.cases if not case.adaptive and _is_finding(case)]
    found += _by_what_they_need(rest, witnessed.union(core), corrected)
    corrected |= {correction.cell for correction in found}
    # A failure is a defect only where no corrected claim explains it.
    blamed = [*filter(_is_finding, judges), *rest]
    defects = [defect_of(case) for case in blamed if not corrected.intersection(case.requires)]
    return Corrections(len(judges), tuple(found), tuple(defects))


def _is_finding(case: CaseRecord) -> bool:
    """Return whether a case shows a problem. An undeclared cell is one if its probe found a bug."""
    if case.reason.facts.is_internal:
        return False
    if case.reason is Reason.UNDECLARED:
        return case.metrics.get(PROBE) in BROKEN
    return case.outcome is Outcome.FAIL or case.reason in (Reason.OVER_DECLARED, Reason.STUB, Reason.FALLBACK)


def defect_of(case: CaseRecord) -> Defect:
    return Defect(case.id, case.reason, one_line(case.message, 2 * _LONGEST_EVIDENCE))


# --- cases that are judged against the claim of their one cell ------------------------------------------------------


def _by_its_claim(case: CaseRecord, deny_silence: bool | None) -> Correction | None:
    """Return the correction that the verdict asks of the one claim that the case tests, if any."""
    if case.level == "core" or len(case.requires) != 1 or REFUSING in case.metrics:
        return None  # the core cannot be declared away, and a refused operator is no lack of something else
    kind = _kind(case, deny_silence)
    return _correction(kind, case.requires[0], case) if kind else None


_KINDS = {
    Reason.OVER_DECLARED: CorrectionKind.WITHDRAWN,
    Reason.STUB: CorrectionKind.WITHDRAWN,
    Reason.RAISED: CorrectionKind.RAISED,
    Reason.FALLBACK: CorrectionKind.ON_HOST,
    Reason.UNDER_DECLARED: CorrectionKind.CLAIMED,
}


def _kind(case: CaseRecord, deny_silence: bool | None) -> CorrectionKind | None:
    """Return the kind of correction, or ``None``. An undeclared cell is corrected by the result of its probe."""
    if case.reason is not Reason.UNDECLARED:
        return _KINDS.get(case.reason)
    saw = case.metrics.get(PROBE)
    if saw in ("right", Reason.FALLBACK.value):
        return CorrectionKind.CLAIMED
    denies = case.outcome is Outcome.FAIL if deny_silence is None else deny_silence
    return CorrectionKind.DENIED if denies and saw in NOT_THERE else None


def _correction(kind: CorrectionKind, cell: str, case: CaseRecord) -> Correction:
    """Return the correction of ``cell`` to the state that the case has shown, with its message as evidence."""
    # A probe's message begins with what is declared.
    evidence = one_line(case.message.rpartition("probe: ")[2], _LONGEST_EVIDENCE) or case.reason.value
    if kind is CorrectionKind.CLAIMED or kind is CorrectionKind.ON_HOST:
        on_host = kind is CorrectionKind.ON_HOST or case.metrics.get(PROBE) == Reason.FALLBACK.value
        claim = DeclaredCell(cell, SUPPORTED, "host" if on_host else "native")
    elif kind is CorrectionKind.DENIED:
        # One reason for all, so that the dtypes of an operator share a line.
        claim = DeclaredCell(cell, UNSUPPORTED, "not-yet", "refused when it was probed")
    else:
        claim = DeclaredCell(cell, UNSUPPORTED, "not-yet", evidence)
    return Correction(kind, claim, case.id, evidence)


# --- cases that only run where everything they need is declared -----------------------------------------------------


def _by_what_they_need(cases: Iterable[CaseRecord], witnessed: set[str], corrected: set[str]) -> Iterator[Correction]:
    """Return corrections of cells that no case is judged against, such as a workload's one unwitnessed cell."""
    seen: set[str] = set()
    for case in cases:
        blamed = [cell for cell in case.requires if cell not in witnessed]
        about_claims = case.reason in (Reason.OVER_DECLARED, Reason.STUB, Reason.FALLBACK)
        if not about_claims or len(blamed) != 1 or case.level == "core" or corrected.intersection(case.requires):
            continue
        # Its own cases judge an operator: one that needs it may need others, too.
        if REFUSING in case.metrics or blamed[0].startswith("operators."):
            continue
        if blamed[0] not in seen:
            seen.add(blamed[0])
            yield _correction(_KINDS[case.reason], blamed[0], case)


def grouped(corrections: Iterable[Correction]) -> dict[CorrectionKind, list[Correction]]:
    """Return the corrections by kind, in the order of the kinds."""
    found: dict[CorrectionKind, list[Correction]] = {kind: [] for kind in CorrectionKind}
    for correction in corrections:
        found[correction.kind].append(correction)
    return {kind: members for kind, members in found.items() if members}

"""First declaration from probes: it claims what worked, and patterns where nearly the whole sample worked.

Operators are sampled, so a pattern covers more than was probed. It is claimed if nearly nothing of its sample is
missing, and its comment says how many cells were probed. A cell that answers wrongly or crashes is neither claimed nor
denied: a bug is not a capability, and is listed instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from conformance.base.claim_lookup import ClaimLookup
from conformance.reports.declaration.claims import claims_of
from conformance.reports.declaration.condensing import Leaf, Node, column_of, describe, state_of, tree
from conformance.reports.declaration.corrections import (
    BROKEN,
    NOT_THERE,
    PROBE,
    SUPPORTED,
    UNSUPPORTED,
    Defect,
    defect_of,
)
from conformance.reports.model import CaseRecord, DeclaredCell, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome, Reason

#: Share of a sample that may be missing where a pattern is claimed. The missing cells are denied by name.
MOST_MISSING = 0.1
#: Probes that a pattern needs. One or two say little about the cells beside them.
FEWEST_FOR_A_PATTERN = 3
_LONGEST_REASON = 80
_UNKNOWN, _BROKEN = "unknown", "broken"


class ProbedState(Enum):
    """State of a cell as its probe saw it, whatever is declared."""

    WORKS = "works"
    MISSING = "missing"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class OperatorColumn:
    """Probed operators of one dtype and mode, such as ``float32-training``. ``claims`` are the claimed patterns."""

    axes: str
    works: int
    missing: int
    broken: int
    claims: tuple[str, ...]


@dataclass(frozen=True)
class FirstDeclaration:
    """First declaration. ``unknown`` are cells that could not be probed; ``probes`` counts cases with an answer."""

    cells: tuple[DeclaredCell, ...]
    columns: tuple[OperatorColumn, ...]
    defects: tuple[Defect, ...]
    unknown: tuple[str, ...]
    probes: int


def first_declaration(report: Report) -> FirstDeclaration:
    """Return what the report's adaptive cases show. The core is left out, because it runs whatever is declared."""
    judges = [case for case in report.cases if case.adaptive and len(case.requires) == 1]
    lookup = claims_of(report)
    claim_of = {case.requires[0]: _claim(case, lookup) for case in judges}
    features = [case for case in judges if not column_of(case.requires[0])]
    cells = [claim for case in features if case.level != "core" and (claim := claim_of[case.requires[0]])]
    columns = []
    for column, cases in _by_column(judges).items():
        # Cells without an answer stay in the tree; the patterns are decided without them.
        leaves = [Leaf(claim_of[case.requires[0]] or _without_answer(case)) for case in cases]
        claims = list(_patterns(tree(leaves), column.split(".*", 1)[1]))
        cells += claims
        columns.append(_summary(column, cases, claims))
    seen = [(case, what_was_seen(case)) for case in judges]
    return FirstDeclaration(
        tuple(cells),
        tuple(columns),
        tuple(defect_of(case) for case, what in seen if what is ProbedState.BROKEN or _lacks_core(case, what)),
        tuple(case.requires[0] for case, what in seen if what is ProbedState.UNKNOWN),
        sum(what is not ProbedState.UNKNOWN for _, what in seen),
    )


def what_was_seen(case: CaseRecord) -> ProbedState:
    """Return the state that a verdict shows."""
    if case.reason.facts.is_internal:
        return ProbedState.UNKNOWN
    saw = str(case.metrics.get(PROBE, ""))
    if case.outcome is Outcome.PASS or saw in ("right", "fallback"):
        return ProbedState.WORKS
    if case.reason in (Reason.UNDER_DECLARED, Reason.FALLBACK):
        return ProbedState.WORKS
    missing = (Reason.OVER_DECLARED, Reason.STUB, Reason.RAISED, Reason.CORE_MISSING)
    if case.reason in missing or saw in NOT_THERE:
        return ProbedState.MISSING
    if saw in BROKEN or (case.outcome is Outcome.FAIL and case.reason is not Reason.UNDECLARED):
        return ProbedState.BROKEN
    return ProbedState.UNKNOWN


def _lacks_core(case: CaseRecord, what: ProbedState) -> bool:
    return what is ProbedState.MISSING and case.level == "core"


def _claim(case: CaseRecord, lookup: ClaimLookup) -> DeclaredCell | None:
    """Return the claim of one cell, or None if the probe gave no answer."""
    what, cell = what_was_seen(case), case.requires[0]
    if case.reason is Reason.EMULATED:
        found = lookup.claim(cell, case.in_reference)  # what passes like that was declared so
        return DeclaredCell(cell, found.state, found.detail)
    if what is ProbedState.WORKS:
        on_host = case.reason is Reason.FALLBACK or case.metrics.get(PROBE) == "fallback"
        return DeclaredCell(cell, SUPPORTED, "host" if on_host else "native")
    if what is ProbedState.MISSING:
        # The text before these words tells what is declared, which the new declaration replaces.
        text = case.message.rpartition("probe: ")[2].rpartition("confirmed: ")[2]
        return DeclaredCell(cell, UNSUPPORTED, "not-yet", one_line(text, _LONGEST_REASON) or case.reason.value)
    return None


# --- operators ------------------------------------------------------------------------------------------------------


def _by_column(cases: Iterable[CaseRecord]) -> dict[str, list[CaseRecord]]:
    """Return the cases of cells that a pattern can cover, by dtype and mode."""
    columns: dict[str, list[CaseRecord]] = {}
    for case in cases:
        if (column := column_of(case.requires[0])) and case.in_reference:
            columns.setdefault(column, []).append(case)
    return columns


def _without_answer(case: CaseRecord) -> DeclaredCell:
    """Return the place of a cell that is neither claimed nor denied, because it is broken or was not probed."""
    is_broken = what_was_seen(case) is ProbedState.BROKEN
    return DeclaredCell(case.requires[0], _UNKNOWN, _BROKEN if is_broken else "")


def _patterns(node: Node, axes: str) -> Iterator[DeclaredCell]:
    """Return the widest patterns that the sample supports, and their exceptions."""
    known = [leaf for leaf in node.everything() if leaf.claim.state != _UNKNOWN]
    works = [leaf for leaf in known if leaf.claim.state == SUPPORTED]
    # A pattern promises the operators that were not probed: each one that is broken speaks against it.
    broken = sum(leaf.claim.detail == _BROKEN for leaf in node.everything())
    against = len(known) - len(works) + broken
    if len(known) >= FEWEST_FOR_A_PATTERN and against <= MOST_MISSING * (len(known) + broken):
        native = sum(leaf.claim.detail == "native" for leaf in works)
        pattern = DeclaredCell(f"{node.prefix}*{axes}", SUPPORTED, "native" if 2 * native >= len(works) else "host")
        yield pattern
        yield from describe(tree(known), state_of(pattern), axes, {}) or ()
        return
    for child in node.nodes.values():
        yield from _patterns(child, axes)


def _summary(column: str, cases: list[CaseRecord], claims: list[DeclaredCell]) -> OperatorColumn:
    """Return the counts of the probes of one dtype and mode, and the patterns that are claimed for it."""
    seen = [what_was_seen(case) for case in cases]
    return OperatorColumn(
        column.partition("[")[2].rstrip("]"),
        seen.count(ProbedState.WORKS),
        seen.count(ProbedState.MISSING),
        seen.count(ProbedState.BROKEN),
        tuple(claim.cell.partition("[")[0].partition(".")[2] for claim in claims if _is_claim_by_pattern(claim)),
    )


def _is_claim_by_pattern(claim: DeclaredCell) -> bool:
    return "*" in claim.cell and claim.state == SUPPORTED

"""Condensing: a corrected declaration, written with as few claims as possible.

A correction under a pattern becomes an exception by name, because a name wins over a pattern. Where exceptions are the
majority, a pattern denies a whole family of names (``linalg.*``), and the names that differ are claimed beside it.
This needs a run that saw every planned cell, because a pattern also covers cells that no case exercised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from conformance.base.claim_lookup import FoundClaim
from conformance.reports.declaration.claims import claims_of
from conformance.reports.declaration.corrections import NOT_THERE, PROBE, SUPPORTED, UNSUPPORTED, Corrections
from conformance.reports.model import DeclaredCell, Report
from conformance.reports.verdict import Reason

_FAMILIES = ("operators", "workloads", "kernels")
#: With fewer cells than this, names are as short as a pattern.
_FEWEST_FOR_A_PATTERN = 3

#: State and detail of a claim. The cells of one pattern must agree on them; reasons of denials may differ.
State = tuple[str, str]
_SILENT: State = ("undeclared", "")


@dataclass(frozen=True)
class Leaf:
    """Cell of a column: its true claim, and whether a pattern that claims support covers it.

    ``refused``: it is not declared, and a probe saw that it is missing, so a denial is also true.
    """

    claim: DeclaredCell
    in_reference: bool = True
    refused: bool = False

    @property
    def state(self) -> State:
        return state_of(self.claim)


@dataclass
class Node:
    """Node of all names with a common prefix, such as ``linalg.``. The root has all names of a column."""

    prefix: str
    leaves: list[Leaf] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)

    def everything(self) -> list[Leaf]:
        return [*self.leaves, *(leaf for node in self.nodes.values() for leaf in node.everything())]


def state_of(claim: DeclaredCell) -> State:
    return (claim.state, claim.detail if claim.state == SUPPORTED else "")


def corrected_cells(report: Report, found: Corrections) -> tuple[DeclaredCell, ...]:
    """Return the report's whole declaration with the corrections in it."""
    written = {claim.cell: claim for claim in report.declaration.cells}
    wanted = {correction.cell: correction.claim for correction in found.corrections}
    # A partial run has not seen every cell that a pattern would cover.
    complete = not report.run.invocation.selection and not report.accounting.unaccounted
    columns = _columns(report, written, wanted) if complete else {}
    written.update({cell: claim for cell, claim in wanted.items() if column_of(cell) not in columns})
    for column, leaves in columns.items():
        _rewrite(written, column, leaves)
    return tuple(written.values())


def column_of(cell: str) -> str:
    """Return the column of a cell, such as ``operators.*[float32-training]``; empty for capabilities."""
    family, dot, rest = cell.partition(".")
    _, bracket, axes = rest.partition("[")
    return f"{family}.*[{axes}" if dot and bracket and family in _FAMILIES else ""


def _columns(
    report: Report, written: Mapping[str, DeclaredCell], wanted: Mapping[str, DeclaredCell]
) -> dict[str, list[Leaf]]:
    """Return the leaves of every column that has a correction, and whose patterns all end with their only ``*``."""
    touched = {column_of(cell) for cell in wanted} - {""}
    odd = {column_of(cell) for cell in written if "*" in cell and not _is_prefix(_subject(cell))}
    lookup = claims_of(report)
    columns: defaultdict[str, dict[str, Leaf]] = defaultdict(dict)
    # Adaptive cases first: only they judge the cell itself, and the first case of a cell counts.
    for case in sorted(report.cases, key=lambda case: not case.adaptive):
        for cell in case.requires:
            if (column := column_of(cell)) in touched - odd and cell not in columns[column]:
                claim = wanted.get(cell) or _holding(written, lookup.claim(cell, case.in_reference), cell)
                refused = case.reason is Reason.UNDECLARED and case.metrics.get(PROBE) in NOT_THERE
                columns[column][cell] = Leaf(claim, case.in_reference, refused)
    return {column: list(leaves.values()) for column, leaves in columns.items()}


def _holding(written: Mapping[str, DeclaredCell], found: FoundClaim, cell: str) -> DeclaredCell:
    """Return the claim that was found for a cell, as if it had been written for the cell itself."""
    return replace(written[found.written[0]], cell=cell) if found.written else DeclaredCell(cell, *_SILENT)


def _subject(cell: str) -> str:
    return cell.partition("[")[0]


def _is_prefix(subject: str) -> bool:
    return subject.endswith(".*") and "*" not in subject[:-1]


# --- one column -----------------------------------------------------------------------------------------------------


def _rewrite(written: dict[str, DeclaredCell], column: str, leaves: list[Leaf]) -> None:
    """Put the shortest description of a column in place of what is written for the column's planned cells."""
    axes = column.split(".*", 1)[1]
    patterns = {cell: claim for cell, claim in written.items() if "*" in cell and column_of(cell) == column}
    named = {cell: claim for cell, claim in written.items() if "*" not in cell and column_of(cell) == column}
    described = describe(tree(leaves), _SILENT, axes, patterns)
    assert described is not None
    written.update({claim.cell: claim for claim in described})
    # A later source takes back only by saying otherwise: what was written by name stays written by name.
    written.update({leaf.claim.cell: leaf.claim for leaf in leaves if leaf.claim.cell in named})


def tree(leaves: Iterable[Leaf]) -> Node:
    """Return the leaves of one column as a tree, by the parts of their names."""
    rows = list(leaves)
    root = Node(f"{rows[0].claim.cell.partition('.')[0]}.")
    for leaf in rows:
        node = root
        parts = _subject(leaf.claim.cell).split(".")[1:]
        for part in parts[:-1]:
            node = node.nodes.setdefault(part, Node(f"{node.prefix}{part}."))
        node.leaves.append(leaf)
    return root


def describe(
    node: Node, inherited: State, axes: str, patterns: Mapping[str, DeclaredCell]
) -> list[DeclaredCell] | None:
    """Return the fewest claims that make every leaf below ``node`` true where ``inherited`` holds; None if none do."""
    pattern = f"{node.prefix}*{axes}"
    there = patterns.get(pattern)
    before = state_of(there) if there else inherited
    kept = _claims(node, before, axes, patterns)
    denied: State = (UNSUPPORTED, "")
    if before in (denied, _SILENT) or len(node.everything()) < _FEWEST_FOR_A_PATTERN:
        return kept
    flipped = _claims(node, denied, axes, patterns)
    if flipped is None or (kept is not None and len(kept) <= len(flipped) + 1):
        return kept
    lost = [leaf.claim for leaf in node.everything() if leaf.state == denied]
    reason = f"{len(lost)} of {len(node.everything())} cells are not there; {lost[0].cell}: {lost[0].reason}"
    return [DeclaredCell(pattern, UNSUPPORTED, "not-yet", reason), *flipped]


def _claims(node: Node, state: State, axes: str, patterns: Mapping[str, DeclaredCell]) -> list[DeclaredCell] | None:
    """Return the claims that are needed below ``node`` if ``state`` holds for it; None if no claims suffice."""
    claims: list[DeclaredCell] = []
    for leaf in node.leaves:
        if not _holds(leaf, state):
            if leaf.state == _SILENT:
                return None  # silence cannot be written down
            claims.append(leaf.claim)
    for child in node.nodes.values():
        below = describe(child, state, axes, patterns)
        if below is None:
            return None
        claims += below
    return claims


def _holds(leaf: Leaf, state: State) -> bool:
    """Return whether the leaf is true without a claim of its own, where ``state`` holds for the node above it."""
    if leaf.state == _SILENT:
        return state == _SILENT or (state[0] == SUPPORTED and not leaf.in_reference) or leaf.refused
    # A pattern of support covers only cells of the reference, so this cell needs a claim by name.
    if state[0] == SUPPORTED and not leaf.in_reference:
        return False
    return leaf.state == state

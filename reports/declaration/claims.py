"""Which written claims a run verified: a claim that no passing case exercised is only a word."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from conformance.reports.model import DeclaredCell, Report
from conformance.reports.verdict import Outcome

_SUPPORTED = "supported"


@dataclass(frozen=True)
class ClaimCheck:
    """The supported claims of a declaration: those that a passing case exercised, and the others."""

    verified: tuple[str, ...]
    unverified: tuple[str, ...]

    @property
    def total(self) -> int:
        return len(self.verified) + len(self.unverified)


def check_claims(report: Report) -> ClaimCheck:
    """Sort the report's supported claims. A pattern is verified by any cell that it covers."""
    passing = _by_axes(cell for case in report.cases if case.outcome is Outcome.PASS for cell in case.requires)
    claims = [claim for claim in report.declaration.cells if claim.state == _SUPPORTED]
    verified = tuple(claim.cell for claim in claims if _is_exercised(claim, passing))
    return ClaimCheck(verified, tuple(claim.cell for claim in claims if claim.cell not in set(verified)))


def _by_axes(cells: Iterable[str]) -> Mapping[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for cell in cells:
        subject, axes = _parts(cell)
        found[axes].add(subject)
    return {axes: frozenset(subjects) for axes, subjects in found.items()}


def _parts(cell: str) -> tuple[str, str]:
    subject, _, axes = cell.partition("[")
    return subject, axes.rstrip("]")


def _is_exercised(claim: DeclaredCell, passing: Mapping[str, frozenset[str]]) -> bool:
    subject, axes = _parts(claim.cell)
    subjects = passing.get(axes, frozenset())
    if "*" in subject:
        return any(fnmatch.fnmatchcase(one, subject) for one in subjects)
    return subject in subjects

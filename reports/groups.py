"""Groups of cases that differ only in their ids: some fifty groups stand for twenty thousand cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.reports.standard import standard_ids
from conformance.reports.totals import Counts, count
from conformance.reports.verdict import Outcome, Reason

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord


@dataclass(frozen=True)
class CaseGroup:
    """Cases that profiles and gate rules treat alike, in the order of the report.

    They share area, tier, level, mode, outcome and reason. All or none are on ranks, about the device, and in the
    profile ``standard``.
    """

    cases: Sequence[CaseRecord]

    @property
    def first(self) -> CaseRecord:
        """Return a case that stands for all of them."""
        return self.cases[0]

    @property
    def outcome(self) -> Outcome:
        return self.first.outcome

    @property
    def reason(self) -> Reason:
        return self.first.reason

    @property
    def area(self) -> str:
        return self.first.area

    @property
    def level(self) -> str:
        return self.first.level

    @property
    def counts(self) -> Counts:
        return count(self.outcome, self.reason, of_device=self.first.of_device).times(len(self.cases))


def grouped(cases: Iterable[CaseRecord]) -> tuple[CaseGroup, ...]:
    """Return the groups of the cases, in the order of their first members."""
    if hasattr(cases, "grouped"):  # a table of many cases, which are not all made at once
        return tuple(map(CaseGroup, cases.grouped(_key, standard_ids())))
    groups: dict[tuple[object, ...], list[CaseRecord]] = {}
    standard = standard_ids()
    for case in cases:
        key = (_key(case), case.id in standard)
        if key in groups:
            groups[key].append(case)
        else:
            groups[key] = [case]
    return tuple(CaseGroup(tuple(members)) for members in groups.values())


def _key(case: CaseRecord) -> tuple[object, ...]:
    mode = case.axes.get("mode")
    return case.area, case.distributed, case.about, case.tier, case.level, mode, case.outcome, case.reason

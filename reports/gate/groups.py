"""Cases that no rule tells apart but by their ids: twenty thousand of them come to some fifty groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.reports.model import CaseRecord
from conformance.reports.profiles import MODE, Record, on_ranks
from conformance.reports.verdict import Outcome, Reason


@dataclass(frozen=True)
class Group:
    """Cases of one area, tier, level and mode, on ranks or not, that ended alike, in the order of the report."""

    cases: tuple[CaseRecord, ...]

    @property
    def facts(self) -> Record:
        """What a profile's predicate looks at; it sees no difference between the cases."""
        return self.cases[0].facts

    @property
    def outcome(self) -> Outcome:
        return self.cases[0].outcome

    @property
    def reason(self) -> Reason:
        return self.cases[0].reason

    @property
    def area(self) -> str:
        return self.cases[0].area

    @property
    def level(self) -> str:
        return self.cases[0].level


def grouped(cases: Iterable[CaseRecord]) -> tuple[Group, ...]:
    """The groups of the cases, in the order of their first ones."""
    found: dict[tuple[object, ...], list[CaseRecord]] = {}
    for case in cases:
        ranks = on_ranks(case.area, case.requires)
        key = (case.area, ranks, case.tier, case.level, case.axes.get(MODE), case.outcome, case.reason)
        if key in found:
            found[key].append(case)
        else:
            found[key] = [case]
    return tuple(Group(tuple(one)) for one in found.values())

"""Differences of two reports by case and claim, not by counts: equal counts hide a new failure behind a fixed one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from conformance.reports.model import CaseRecord, DeclaredCell, Report
from conformance.reports.plain_text import markdown, one_line
from conformance.reports.stack import difference
from conformance.reports.verdict import Outcome


class Change(Enum):
    """Direction of a case's change."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "otherwise"
    GONE = "gone"
    NEW = "new"


@dataclass(frozen=True)
class CaseChange:
    """Case whose verdict differs. ``before`` and ``now`` are ``outcome (reason)``; empty if the case is missing."""

    id: str
    change: Change
    before: str
    now: str


@dataclass(frozen=True)
class ClaimChange:
    """Written claim that differs. ``before`` and ``now`` are ``state (detail)``; empty if there is no claim."""

    cell: str
    before: str
    now: str


@dataclass(frozen=True)
class ReportDiff:
    """Differences of two reports, worse ones first. ``same`` counts the cases that ended alike.

    ``stack`` says in one clause what differs between the stacks of the runs; empty if nothing does.
    """

    before: str
    now: str
    cases: tuple[CaseChange, ...]
    claims: tuple[ClaimChange, ...]
    same: int
    stack: str = ""

    @property
    def differs(self) -> bool:
        return bool(self.cases or self.claims)


#: A skip says more than a failure and less than a pass, so both directions have a step between them.
_RANK = {Outcome.FAIL: 0, Outcome.SKIP: 1, Outcome.PASS: 2}


def compare(before: Report, now: Report) -> ReportDiff:
    """Return what changed from one report to the other."""
    old, new = ({case.id: case for case in report.cases} for report in (before, now))
    changes = [_case_change(id, old.get(id), new.get(id)) for id in {**old, **new}]
    found = [change for change in changes if change is not None]
    order = list(Change)
    return ReportDiff(
        before=_name(before),
        now=_name(now),
        cases=tuple(sorted(found, key=lambda change: (order.index(change.change), change.id))),
        claims=tuple(_claim_changes(_claims(before), _claims(now))),
        same=len(changes) - len(found),
        stack=difference(before, now, without=("declaration",)),
    )


def _name(report: Report) -> str:
    run = f"{report.accelerator.name}, run {report.run.id} of {report.run.started or 'an unknown date'}"
    return f"{run}, profile {report.profile_text}"


def _case_change(id: str, old: CaseRecord | None, new: CaseRecord | None) -> CaseChange | None:
    before, now = _verdict(old), _verdict(new)
    return None if before == now else CaseChange(id, _kind(old, new), before, now)


def _kind(old: CaseRecord | None, new: CaseRecord | None) -> Change:
    """Return how the case changed between the reports; ``None`` means that a report lacks it."""
    if new is None:
        return Change.GONE
    if old is None:
        return Change.NEW
    step = _RANK[new.outcome] - _RANK[old.outcome]
    return Change.OTHER if not step else Change.BETTER if step > 0 else Change.WORSE


def _verdict(case: CaseRecord | None) -> str:
    return "" if case is None else f"{case.outcome.value} ({case.reason.value})"


def _claims(report: Report) -> Mapping[str, str]:
    return {row.cell: _said(row) for row in report.declaration.cells}


def _said(row: DeclaredCell) -> str:
    return f"{row.state} ({row.detail})" if row.detail else row.state


def _claim_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[ClaimChange]:
    cells = sorted({**old, **new})
    return [ClaimChange(cell, old.get(cell, ""), new.get(cell, "")) for cell in cells if old.get(cell) != new.get(cell)]


_NOTHING: Final = "–"
#: Rows in texts for people. JSON has all of them.
_MOST_ROWS: Final = 2_000


#: Changes in the order in which a reader acts on them.
_TO_ACT: Final = (Change.WORSE, Change.GONE, Change.OTHER, Change.BETTER, Change.NEW)


def text(found: ReportDiff) -> str:
    """Return a line for each kind of difference of a subject, what to act on first, and counts at the end."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: ReportDiff) -> Iterator[str]:
    """Yield the lines of the text form, at most ``_MOST_ROWS`` of cases and of claims."""
    yield f"before: {one_line(found.before)}"
    yield f"now:    {one_line(found.now)}"
    if found.stack:
        yield f"stack:  {one_line(found.stack)}"
    groups = _alike(found.cases)
    for cases in groups[:_MOST_ROWS]:
        first = cases[0]
        many = f" ({len(cases)} cases, such as {one_line(first.id)})"
        name = one_line(first.id) if len(cases) == 1 else one_line(_subject(first)) + many
        yield f"{first.change.value:<9} {name}: {first.before or _NOTHING} → {first.now or _NOTHING}"
    yield from _more(len(groups))
    for claim in found.claims[:_MOST_ROWS]:
        before, now = one_line(claim.before) or _NOTHING, one_line(claim.now) or _NOTHING
        yield f"claim     {one_line(claim.cell)}: {before} → {now}"
    yield from _more(len(found.claims))
    yield summary(found)


def _subject(case: CaseChange) -> str:
    """Return the id of the case without its axes."""
    return case.id.partition("[")[0]


def _alike(cases: Sequence[CaseChange]) -> list[list[CaseChange]]:
    """Return the cases of one subject that changed alike, new failures and the largest groups first."""
    groups: dict[tuple[str, ...], list[CaseChange]] = {}
    for case in cases:
        groups.setdefault((case.change.value, _subject(case), case.before, case.now), []).append(case)

    def order(alike: list[CaseChange]) -> tuple[int, bool, int, str]:
        first = alike[0]
        fails = first.now.startswith(Outcome.FAIL.value)
        return _TO_ACT.index(first.change), not fails, -len(alike), first.id

    return sorted(groups.values(), key=order)


def _more(number: int) -> Iterator[str]:
    if number > _MOST_ROWS:
        yield f"… and {number - _MOST_ROWS} more; --format json has them all"


def summary(found: ReportDiff) -> str:
    """Return the counts of all changes in a sentence. It begins with the worse ones, also if there are none."""
    counts = Counter(case.change for case in found.cases)
    parts = [f"{counts[change]} {change.value}" for change in Change if counts[change] or change is Change.WORSE]
    claims = f"{len(found.claims)} claim{'' if len(found.claims) == 1 else 's'} changed"
    return ", ".join([*parts, f"{found.same} the same", claims])


def as_json(found: ReportDiff) -> str:
    """Return everything, for programs."""
    value: dict[str, Any] = {"schema": 1, **asdict(found), "differs": found.differs}
    value["cases"] = [{**asdict(case), "change": case.change.value} for case in found.cases]
    return json.dumps(value, indent=1) + "\n"


def as_markdown(found: ReportDiff) -> str:
    """Return tables, for a pull request."""
    head = [f"Before: {markdown(found.before)}", f"Now: {markdown(found.now)}"]
    head += [*([f"Stack: {markdown(found.stack)}"] if found.stack else []), summary(found)]
    cases = [[case.change.value, markdown(case.id), case.before, case.now] for case in found.cases[:_MOST_ROWS]]
    claims = [["claim", *map(markdown, (claim.cell, claim.before, claim.now))] for claim in found.claims[:_MOST_ROWS]]
    rows = [f"| {' | '.join(cell or _NOTHING for cell in row)} |" for row in (*cases, *claims)]
    table = ["| change | case or cell | before | now |", "| --- | --- | --- | --- |", *rows] if rows else []
    return "\n\n".join(head) + "\n\n" + "\n".join(table) + ("\n" if table else "")


FORMATS: Final[Mapping[str, Callable[[ReportDiff], str]]] = {"text": text, "json": as_json, "markdown": as_markdown}

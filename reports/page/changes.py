"""Changes between the two newest runs of a column: which cases broke and which were mended, by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.reports.causes import cause_key, causes
from conformance.reports.model import CaseRecord
from conformance.reports.page.cells import Ending
from conformance.reports.page.columns import EarlierRun, PageColumn
from conformance.reports.plain_text import one_line
from conformance.reports.profiles import in_profile
from conformance.reports.stack import differing, shown, stack_of
from conformance.reports.verdict import Outcome

#: A skip says more than a failure and less than a pass.
_RANK = {Outcome.FAIL: 0, Outcome.SKIP: 1, Outcome.PASS: 2}
#: Facts of a stack that the page names whether they differ or not.
_VERSIONS = ("driver", "runtime", "torch", "backend package", "suite")


@dataclass(frozen=True)
class CaseGroupChange:
    """Cases that changed in the same way and for the same cause. ``before`` and ``now`` are words for people."""

    cause: str
    before: str
    now: str
    cases: tuple[CaseRecord, ...]

    @property
    def areas(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.area for case in self.cases))

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.subject for case in self.cases))

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.axes["dtype"] for case in self.cases if "dtype" in case.axes))


@dataclass(frozen=True)
class VersionChange:
    """Version in the run before and now."""

    name: str
    before: str
    now: str

    @property
    def differs(self) -> bool:
        return self.before != self.now


@dataclass(frozen=True)
class ColumnChanges:
    """Everything that changed in a column since the run before. ``fresh`` and ``gone`` count cases of one run only."""

    column: PageColumn
    before: EarlierRun
    broken: tuple[CaseGroupChange, ...]
    mended: tuple[CaseGroupChange, ...]
    versions: tuple[VersionChange, ...] = ()
    fresh: int = 0
    gone: int = 0

    @property
    def broke(self) -> int:
        return sum(len(group.cases) for group in self.broken)

    @property
    def healed(self) -> int:
        return sum(len(group.cases) for group in self.mended)


def changes_of(column: PageColumn) -> ColumnChanges | None:
    """Return what changed since the run before; None for a first run."""
    if not column.earlier:
        return None
    before = column.earlier[-1]
    old, now = before.endings, column.endings
    worse: list[CaseRecord] = []
    better: list[CaseRecord] = []
    for id, case in column.cases.items():
        step = _RANK[case.outcome] - _rank(old[id]) if id in old else 0
        if step:
            (better if step > 0 else worse).append(case)
    return ColumnChanges(
        column,
        before,
        tuple(_groups(worse, old)),
        tuple(_groups(better, old)),
        tuple(_versions(before, column)),
        sum(id not in old for id in now),
        sum(id not in now for id in old),
    )


def _rank(ending: Ending) -> int:
    """Return the rank of a verdict. A case without one, after a kill, is like one that did not run."""
    return _RANK[ending[0]] if ending else _RANK[Outcome.SKIP]


def _groups(cases: Sequence[CaseRecord], old: Mapping[str, Ending]) -> Iterator[CaseGroupChange]:
    """Yield the cases by cause and direction, the largest group first."""
    groups: defaultdict[tuple[str, str, str, str], list[CaseRecord]] = defaultdict(list)
    for case in cases:
        now = said((case.outcome, case.reason))
        groups[said(old[case.id]), now, case.area, cause_key(case) if case.outcome is not Outcome.PASS else ""].append(
            case
        )
    for (before, now, area, key), members in sorted(groups.items(), key=lambda row: (-len(row[1]), row[0])):
        yield CaseGroupChange(_cause(members[0], key, area), before, now, tuple(members))


def _cause(case: CaseRecord, key: str, area: str) -> str:
    """Return a sentence for the cause: the first line of the first case's message, or what its reason means."""
    if case.outcome is Outcome.PASS:
        return f"{area} works again"
    # The first case's own words: the key has no numbers in it.
    line = next((line for line in case.message.splitlines() if line.strip()), "") if key else ""
    return one_line(line, 160) or case.reason.facts.when


def said(ending: Ending) -> str:
    """Return a verdict in a word: ``pass``, the kind of the failure, or why the case was skipped."""
    if ending is None:
        return "no verdict"
    outcome, reason = ending
    return "pass" if outcome is Outcome.PASS else str(reason.value)


def _versions(before: EarlierRun, column: PageColumn) -> Iterator[VersionChange]:
    """Yield the versions that people look for, and whatever else differs between the stacks of the two runs."""
    old, new = stack_of(before.head), stack_of(column.report)
    others = differing(before.head, column.report, without=_VERSIONS)
    for name in (*_VERSIONS, *others):
        pair = others.get(name, (old.get(name, ""), new.get(name, "")))
        if any(pair):
            was, now = shown(*pair) if pair[0] != pair[1] else pair
            yield VersionChange(name, one_line(was, 60), one_line(now, 60))


@dataclass(frozen=True)
class BlockedLine:
    """Line of one accelerator about the profile ``training``: what keeps it from the profile, in the order to act."""

    title: str
    first: str
    then: str = ""
    failing: int = 0

    @property
    def style(self) -> str:
        return "worse" if self.failing else "quiet"


#: Causes and areas that a line names after the first.
_THEN = 3


def blocked(column: PageColumn) -> BlockedLine:
    """Return what blocks training on an accelerator: the core first, then failures by cause, then missing claims."""
    failed = [case for case in column.report.cases if case.outcome is Outcome.FAIL and in_profile("training", case)]
    core = [case for case in failed if case.level == "core"]
    result = next(result for result in column.report.profile_results if result.name == "training")
    parts = [f"the core: {_counted(core)}"] if core else []
    parts += [
        f"{_counted(cause.cases)}: {_cause(cause.first, 'message', '')}"
        for cause in causes(case for case in failed if case.level != "core")
    ]
    parts += [one_line(text, 120) for text in result.lacks]
    if not parts:
        left = result.claimed - result.verified
        parts = [_counted_words(left, "claimed case", "without a pass")] if left else ["nothing"]
    more = f" and {len(parts) - _THEN - 1} more causes" if len(parts) > _THEN + 1 else ""
    return BlockedLine(column.title, parts[0], "; ".join(parts[1 : _THEN + 1]) + more, len(failed))


def _counted(cases: Sequence[CaseRecord]) -> str:
    """Return the number of cases and the subjects of the first, such as ``5 cases of rng.fork and others``."""
    subjects = list(dict.fromkeys(f"{case.area}.{case.subject}" for case in cases))
    others = " and others" if len(subjects) > 1 else ""
    return f"{_counted_words(len(cases), 'case', f'of {one_line(subjects[0], 80)}')}{others}"


def _counted_words(number: int, noun: str, rest: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'} {rest}"

"""Plausible numbers of processes and durations: what one machine can do, and what two runs can have in common."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from statistics import median
from typing import Final

from conformance.reports.gate.command_line import typed, words_of
from conformance.reports.gate.finding import GateFinding, counted, named, reject
from conformance.reports.model import RECORDS_STACK, Report
from conformance.reports.plain_text import one_line
from conformance.reports.totals import was_executed
from conformance.reports.verdict import Outcome

#: Factor by which the times of all cases together may exceed the time of the run times its workers.
_SLACK: Final = 1.25
#: Seconds that pytest's controller needs for a case, at the least. The published runs take 10 ms for each case.
_QUICKEST: Final = 0.0005
#: Cases that no run finishes within a second.
_MANY: Final = 1_000
#: Digits of a second that the journal keeps.
_DIGITS: Final = 6
#: Seconds. At most half of the passed cases may be shorter.
_TOO_QUICK: Final = 0.00005
#: Cases that are enough to recognise a run by their durations, and the share of them that may be equal.
_TELLING: Final = 20
_MOST_EQUAL: Final = 0.5
#: Seconds, and parts of a duration, within which two durations are the same: no two runs repeat them so closely.
_SAME_SECONDS: Final = 2e-6
_SAME_SHARE: Final = 5e-4
#: Passed cases of which half may not have one and the same duration.
_MANY_ALIKE: Final = 200
#: Share of the durations that may equal the one before, and that may be larger, or be whole milliseconds.
_MOST_EQUAL_NEIGHBOURS: Final = 0.2
_MOST_MONOTONE: Final = 0.9
#: Measurements of time and speed in a case. Two runs never measure the same.
_MEASURED: Final = ("step_ms_median", "step_ms_p90", "tokens_per_s", "samples_per_s")
#: Processes of one machine, at the least and for each of its cores, and shards of one run.
_FEW_WORKERS: Final = 64
_WORKERS_A_CORE: Final = 16
_MOST_WORKERS: Final = 16_384
_MOST_SHARDS: Final = 1_024
#: The beginning of a merged run's id. Older reports do not say how many shards were merged; this many are assumed.
MERGED: Final = "merged-"
_ASSUMED_SHARDS: Final = 64


def _shards(report: Report) -> int:
    """Return the number of runs that the report is merged of."""
    if report.schema < RECORDS_STACK and report.run.id.startswith(MERGED) and not report.run.invocation.shards:
        return _ASSUMED_SHARDS
    return max(report.run.invocation.shards, 1)


def check_workers(report: Report) -> Iterator[GateFinding]:
    """Reject a number of processes or shards that the machine, or the command line, cannot have had."""
    run = report.run
    workers, shards, merged = run.invocation.workers, run.invocation.shards, run.id.startswith(MERGED)
    fits = 0 <= shards <= min(_MOST_SHARDS, max(len(report.cases), 1))
    # Older reports that were merged do not say of how many.
    if not fits or (report.schema >= RECORDS_STACK and (shards > 1) is not merged) or shards == 1:
        yield reject("G12", f"The run {one_line(run.id, 60)} cannot be merged of {shards} shards.")
        return
    cores = report.environment.facts.get("cores")
    each = max(_FEW_WORKERS, _WORKERS_A_CORE * cores) if isinstance(cores, int) else _FEW_WORKERS
    most = min(_MOST_WORKERS, each * _shards(report))
    if not 0 <= workers <= most:
        yield reject("G12", f"The run had {workers} processes; at most {most} are plausible on this machine.")
        return
    argv = words_of(report)
    asked = typed(argv, "-n", "--numprocesses")
    if merged or "--maxprocesses" in " ".join(argv) or asked is None or not asked.isdecimal():
        return
    if asked != str(workers):
        yield reject("G12", f"The run was typed for {one_line(asked, 20)} processes, and the file says {workers}.")


def check_durations(report: Report, wall: timedelta) -> Iterator[GateFinding]:
    """Reject durations that are negative, zero or alike, and sums that do not fit into the time of the run."""
    if odd := [case.id for case in report.cases if not 0 <= case.seconds < math.inf]:
        n = counted(len(odd), "case has", "cases have")
        yield reject("G13", f"{n} a duration that is negative or no number: {named(odd)}.", odd)
        return
    if fine := [case.id for case in report.cases if round(case.seconds, _DIGITS) != case.seconds]:
        n = counted(len(fine), "case has", "cases have")
        yield reject("G13", f"{n} a duration with more digits than a run writes: {named(fine)}.", fine)
    # Dates have whole seconds, so the run may have taken a second more than they say.
    had = wall.total_seconds() + 1
    yield from _check_sum(report, wall, had)
    yield from _check_pattern(report)
    # No case passes in no time. Durations of 0 would pass every other check of time.
    if timeless := [case.id for case in report.cases if not case.seconds and case.outcome is Outcome.PASS]:
        yield reject("G13", f"{counted(len(timeless), 'case')} passed in 0 s: {named(timeless)}.", timeless)
    durations = [case.seconds for group in report.groups if group.outcome is Outcome.PASS for case in group.cases]
    quick = sum(0 < seconds < _TOO_QUICK for seconds in durations)
    if quick > len(durations) / 2:
        yield reject("G13", f"{quick} of {len(durations)} passed cases took less than {_TOO_QUICK * 1e6:.0f} µs.")
    elif len(durations) >= _MANY_ALIKE:
        # Whole microseconds: the journal keeps no more digits.
        alike, number = Counter(round(seconds, 6) for seconds in durations).most_common(1)[0]
        if number > len(durations) / 2:
            yield reject("G13", f"{number} of {len(durations)} passed cases took exactly {alike:g} s.")


def _check_pattern(report: Report) -> Iterator[GateFinding]:
    """Reject durations that follow from their place in the file, or from each other: no clock measures such."""
    measured = [case.seconds for case in report.cases if case.outcome is Outcome.PASS]
    pairs = list(itertools.pairwise(measured))
    if len(pairs) < _MANY_ALIKE:
        return
    signs = {
        "are those of the case before": sum(old == new for old, new in pairs) / _MOST_EQUAL_NEIGHBOURS,
        "grow from case to case": sum(old < new for old, new in pairs) / _MOST_MONOTONE,
        "shrink from case to case": sum(old > new for old, new in pairs) / _MOST_MONOTONE,
        "are whole milliseconds": sum(round(s * 1e6) % 1000 == 0 for s in measured) / _MOST_MONOTONE,
    }
    yield from (
        reject("G13", f"Most of the {len(measured)} durations of passed cases {sign}.")
        for sign, number in signs.items()
        if number > len(pairs)
    )


def _check_sum(report: Report, wall: timedelta, had: float) -> Iterator[GateFinding]:
    """Reject more time in cases than the processes had, and more cases than they can run in it."""
    spent = sum(case.seconds for case in report.cases)
    cores = report.environment.facts.get("cores")
    # A resumed run may have had more processes than its first part, whose number the file gives.
    workers = max(report.run.invocation.workers, cores if isinstance(cores, int) else 1, 1)
    room = had * workers * _SLACK
    if spent > room:
        yield reject("G13", f"The cases took {spent:.0f} s, more than the run had: {wall} on {workers} processes.")
    executed = sum(len(group.cases) for group in report.groups if was_executed(group.outcome, group.reason))
    # One process of each run takes the results of all its workers.
    if executed * _QUICKEST > had * _shards(report) or (executed >= _MANY and not wall):
        yield reject("G13", f"{counted(executed, 'case')} ran within {wall} on {workers} processes.")


def check_replay(report: Report, baseline: Report | None) -> Iterator[GateFinding]:
    """Reject a report that repeats the baseline's run under other times."""
    if baseline is None:
        return
    before, now = baseline.run, report.run
    if before.id == now.id:
        if (before.started, before.finished) != (now.started, now.finished):
            yield reject("G13", f"The run {one_line(now.id, 60)} is the baseline's, with other times.")
        return
    earlier = {case.id: case for case in baseline.cases if case.outcome is Outcome.PASS}
    both = [(earlier[case.id], case) for case in report.cases if case.id in earlier and case.outcome is Outcome.PASS]
    pairs = [(old.seconds, new.seconds) for old, new in both]
    if len({old for old, _ in pairs}) >= _TELLING and (equal := _derived(pairs)) > _MOST_EQUAL * len(pairs):
        yield reject("G13", f"{equal} of {len(pairs)} durations follow from those of the baseline: it is the same run.")
    measured = [
        (old.metrics[name], new.metrics.get(name)) for old, new in both for name in _MEASURED if name in old.metrics
    ]
    same = sum(old == new for old, new in measured)
    if len(measured) >= _TELLING and same > _MOST_EQUAL * len(measured):
        yield reject("G13", f"{same} of {len(measured)} measured speeds are those of the baseline: it is the same run.")


def _derived(pairs: Sequence[tuple[float, float]]) -> int:
    """Return how many durations are the earlier ones, all shifted or all stretched by the same amount."""
    shift = median(new - old for old, new in pairs)
    factor = median(new / old for old, new in pairs if old) if any(old for old, _ in pairs) else 1.0
    shifted = sum(abs(new - old - shift) <= _SAME_SECONDS for old, new in pairs)
    stretched = sum(abs(new - old * factor) <= _SAME_SHARE * new for old, new in pairs if new > _TOO_QUICK)
    return max(shifted, stretched)

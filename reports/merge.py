"""Merging of shard reports into one. The shards must be disjoint and complete; an error names the ids."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from conformance.base.errors import UsageError
from conformance.reports.model import (
    Accounting,
    CaseRecord,
    Invocation,
    Report,
    Run,
    WaiverRecord,
    count_cases,
    manifest_sha256,
)
from conformance.reports.plain_text import one_line
from conformance.reports.stack import difference
from conformance.reports.times import in_order
from conformance.reports.verdict import Reason

_SHARD: Final = "--shard"
_NAMED: Final = 3
#: Facts that must be equal in all shards, with their names for people.
_COMMON: Final[tuple[tuple[str, Callable[[Report], Any]], ...]] = (
    ("accelerators", lambda report: report.accelerator.name),
    ("formats", lambda report: report.schema),
    ("profiles", lambda report: report.run.profile),
    ("strictness levels", lambda report: report.run.strictness),
    ("challenges", lambda report: report.run.invocation.challenge),
    ("seeds", lambda report: report.run.invocation.seed),
    ("other selections", lambda report: _selection(report.run.invocation)),
)


def merge(shards: Sequence[Report], required: Collection[str] | None = None) -> Report:
    """Return the report of the whole run.

    ``required`` are the ids of the whole plan, if they are known. Without them the shards' numbers (K/N) must show that
    none is missing. Raises UsageError.
    """
    if len(shards) < 2:
        raise UsageError("name at least two reports to merge.")
    for what, fact in _COMMON:
        if len({fact(shard) for shard in shards}) > 1:
            found = ", ".join(
                one_line("none" if fact(shard) in (None, "", ()) else str(fact(shard)), 80) for shard in shards
            )
            raise UsageError(f"these are not shards of one run: they have different {what}: {found}.")
    for shard in shards[1:]:
        if said := difference(shards[0], shard):
            raise UsageError(f"these are not shards of one run: they ran on different stacks: {said}.")
    _check_disjoint(shards)
    _check_complete(shards, required)
    return _merged(shards)


def _check_disjoint(shards: Sequence[Report]) -> None:
    """Raise ``UsageError`` if two reports plan the same case."""
    found = Counter(id for shard in shards for id in _planned(shard))
    twice = sorted(id for id, number in found.items() if number > 1)
    if twice:
        raise UsageError(f"the reports overlap in {_count(twice)}: {_named(twice)}.")


def _planned(shard: Report) -> list[str]:
    return [planned.id for planned in (*shard.cases, *shard.accounting.unaccounted)]


def _check_complete(shards: Sequence[Report], required: Collection[str] | None) -> None:
    """Raise ``UsageError`` if required cases, or shards of ``--shard K/N``, are missing."""
    if required is not None:
        missing = sorted(set(required).difference(*map(_planned, shards)))
        if missing:
            raise UsageError(f"the reports leave out {_count(missing)}: {_named(missing)}.")
        return
    parts = [_part(shard.run.invocation.argv) for shard in shards]
    numbers = {whole for _, whole in filter(None, parts)}
    if None in parts or len(numbers) != 1:
        raise UsageError("the reports do not say which part of the whole they are (--shard K/N); name a --manifest.")
    whole = numbers.pop()
    absent = sorted(set(range(1, whole + 1)) - {part[0] for part in parts if part})
    if absent:
        raise UsageError(f"shards are missing: {', '.join(f'{part}/{whole}' for part in absent[:20])}.")


def _part(argv: Sequence[str]) -> tuple[int, int] | None:
    """Return K and N of the last ``--shard K/N``, or None."""
    values = [following for word, following in itertools.pairwise(argv) if word == _SHARD]
    values += [word.split("=", 1)[1] for word in argv if word.startswith(f"{_SHARD}=")]
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", values[-1]) if values else None
    return (int(match[1]), int(match[2])) if match else None


def _named(ids: Sequence[str]) -> str:
    shown = ", ".join(one_line(id, 120) for id in ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"


def _count(ids: Sequence[str]) -> str:
    return f"{len(ids)} case{'' if len(ids) == 1 else 's'}"


def _merged(shards: Sequence[Report]) -> Report:
    """Return the merged report. Header facts are those of the first shard; counts and hash are made anew."""
    first = shards[0]
    cases = tuple(sorted((case for shard in shards for case in shard.cases), key=lambda case: case.id))
    accounting = _accounting(shards)
    merged = replace(
        first,
        run=_run(shards),
        waivers=_waivers(first.waivers, cases),
        accounting=accounting,
        totals=count_cases(cases, accounting),
        notes=tuple(dict.fromkeys(note for shard in shards for note in shard.notes)),
        cases=cases,
    )
    planned = len(cases) + len(accounting.unaccounted)
    suite = replace(merged.run.suite, cases=planned, manifest_sha256=manifest_sha256(merged))
    return replace(merged, run=replace(merged.run, suite=suite))


def _run(shards: Sequence[Report]) -> Run:
    """Return the facts about the merged run, whose id depends on the ids of the shards alone."""
    # Sorted, so that the order of the arguments does not change the merged report.
    runs = sorted((shard.run for shard in shards), key=lambda run: run.id)
    name = hashlib.sha256("\n".join(run.id for run in runs).encode("utf-8", errors="replace")).hexdigest()[:12]
    return replace(
        shards[0].run,
        id=f"merged-{name}",
        started=min((run.started for run in runs), key=in_order),
        # One unfinished shard leaves the whole run unfinished.
        finished=max((run.finished for run in runs), key=in_order) if all(run.finished for run in runs) else "",
        invocation=_invocation([run.invocation for run in runs]),
    )


def _invocation(invocations: Sequence[Invocation]) -> Invocation:
    """Return the invocation of the whole run. Its workers are those of all shards together."""
    first = invocations[0]
    workers = sum(max(invocation.workers, 1) for invocation in invocations)
    shards = sum(max(invocation.shards, 1) for invocation in invocations)
    argv = _without_shard(first.argv)
    return replace(first, argv=argv, selection=_selection(first), workers=workers, shards=shards)


def _selection(invocation: Invocation) -> tuple[str, ...]:
    return tuple(sorted(option for option in invocation.selection if option != _SHARD))


def _without_shard(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments without ``--shard`` and its value: the merged run is the whole."""
    before = ("", *argv)
    return tuple(
        word
        for last, word in zip(before, argv, strict=False)
        if word != _SHARD and last != _SHARD and not word.startswith(f"{_SHARD}=")
    )


def _accounting(shards: Sequence[Report]) -> Accounting:
    """Return the accounting of all shards together."""
    found = [shard.accounting for shard in shards]
    return Accounting(
        unaccounted=tuple(planned for each in found for planned in each.unaccounted),
        duplicates=tuple(id for each in found for id in each.duplicates),
        unknown=tuple(id for each in found for id in each.unknown),
        in_flight=tuple(id for each in found for id in each.in_flight),
        torn_lines=sum(each.torn_lines for each in found),
    )


def _waivers(record: WaiverRecord, cases: Iterable[CaseRecord]) -> WaiverRecord:
    rows = list(cases)
    used = tuple(case.id for case in rows if case.reason is Reason.WAIVED)
    return replace(record, used=used, stale=tuple(case.id for case in rows if case.reason is Reason.WAIVER_STALE))

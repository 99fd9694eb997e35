"""Data block of the page for its script: verdicts as letters, each text once.

One letter for each case and column keeps 20,000 cases of nine accelerators below a megabyte.
"""

from __future__ import annotations

import json
import math
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from conformance.reports.model import CaseRecord, Fact, Report
from conformance.reports.page.cells import ABSENT, LETTERS, SEVERE, Ending, Mark, letter_of
from conformance.reports.page.columns import PageColumn
from conformance.reports.page.states import StateLine
from conformance.reports.page.table import Table
from conformance.reports.plain_text import plain
from conformance.reports.profiles import PROFILES, in_profile
from conformance.reports.repro import is_repeatable, repro_line_of
from conformance.reports.times import day
from conformance.reports.verdict import Outcome, Reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LONGEST_MESSAGE: Final = 600
#: Characters of messages and metrics in a column. Longer texts are left to the report itself.
_MOST_TEXT: Final = 400_000
#: Earlier runs in the data block, and the changes of verdicts between them.
_MOST_RUNS: Final = 31
_MOST_CHANGES: Final = 20_000
#: Stands for the case's id in a message, so that many cases share one text. ``plain`` removes it from other texts.
THE_CASE: Final = "\x01"
#: Values that the page's script knows by the same numbers and letters.
NO_MESSAGE: Final = -1
#: Used share of the error budget, in quarters of a power of two, rounded up: ``a`` is 1/1024 or less, ``O`` all of it.
_SHARES: Final = string.ascii_letters + "123456789"
_STEPS: Final = 4
#: Names of the profiles that earn a badge; the last one, ``full``, holds every case.
_PROFILES: Final = [name for name, profile in PROFILES.items() if profile.badge]
_LEAST_SHARE: Final = -10 * _STEPS
RATIO: Final = "max_budget_ratio"


def payload(table: Table, columns: Sequence[PageColumn]) -> dict[str, Any]:
    """Return everything that the script needs, in the order of the table."""
    ids = table.ids
    axes: dict[str, int] = {}
    # In the order of the plan, which is that of the ids.
    places = [axes.setdefault(json.dumps(dict(table.planned[id].axes)), len(axes)) for id in ids]
    return {
        "rows": [[subject.area, subject.name, len(subject.ids)] for subject in table.subjects],
        "ids": list(ids),
        "unrepeatable": [place for place, id in enumerate(ids) if not is_repeatable(id)],
        "axes": [json.loads(text) for text in axes],
        "axis": places,
        "profiles": _PROFILES,
        "inside": "".join(_membership(table, id) for id in ids),
        "letters": {letter: [outcome.value, reason.value] for (outcome, reason), letter in LETTERS.items()},
        "reasons": {
            reason.value: {
                "mark": reason.facts.mark,
                "contradicts": reason.facts.contradicts,
                "when": reason.facts.when,
                "fix": reason.facts.fix,
                "severe": reason in SEVERE,
            }
            for reason in Reason
        },
        "marks": {mark.value: [mark.facts.sign, mark.facts.style, mark.facts.words] for mark in Mark},
        "shares": _SHARES,
        "exactly_the_budget": -_LEAST_SHARE,
        "steps": _STEPS,
        "columns": [_column(column, ids) for column in columns],
        "aliases": aliases(),
    }


@cache
def aliases() -> dict[str, dict[str, Any]]:
    """Return other names of subjects, topics, and words of other languages. ``aliases.toml`` explains them."""
    text = (resources.files(__package__) / "aliases.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = tomllib.loads(text)
    return table


def _membership(table: Table, id: str) -> str:
    """Return a hexadecimal digit with a bit for each profile except ``full``, which holds every case."""
    # Four bits make one hexadecimal digit, so membership costs one character a case.
    bits = [in_profile(name, table.planned[id]) for name in _PROFILES[:-1]]
    return f"{sum(bit << place for place, bit in enumerate(bits)):x}"


def _column(column: PageColumn, ids: Sequence[str]) -> dict[str, Any]:
    """Return the data of one column. Lists and strings of letters follow the order of ``ids``."""
    report = column.report
    (messages, message), details = _texts(column, ids)
    used, line = frozenset(report.waivers.used), repro_line_of(report)
    return {
        "title": column.title,
        "name": column.name,
        "run": _facts(report),
        "day": day(report.run.started),
        "answers": StateLine(column, None).answers,
        "verdicts": _letters(column.endings, ids),
        "history": list(_history(column, ids)),
        "shares": "".join(share(column.cases[id]) if id in column.cases else ABSENT for id in ids),
        "messages": messages,
        "message": message,
        "details": details,
        "waived": [place for place, id in enumerate(ids) if id in used],
        "repro": [line.head, line.tail] if line.head else [],
    }


def _history(column: PageColumn, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the earlier runs, the newest first: what differs from the run after each, by the place of the case."""
    after, room = _letters(column.endings, ids), _MOST_CHANGES
    for number, run in enumerate(column.earlier[: -_MOST_RUNS - 1 : -1]):
        # Not its endings, which it would keep: two hundred runs would take more memory than the reports.
        known = dict(zip(run.ids, run.letters, strict=True))
        letters = "".join([known.get(id, ABSENT) for id in ids])
        changed = {place: old for place, (old, new) in enumerate(zip(letters, after, strict=True)) if old != new}
        room -= len(changed)
        # The run before is always there, because the page says what has changed since.
        if room < 0 < number:
            return
        yield {"day": day(run.run.started), "driver": plain(run.accelerator.driver), "changed": changed}
        after = letters


def _facts(report: Report) -> dict[str, Fact]:
    """Return the environment, as the dialog shows it."""
    facts: dict[str, Fact] = {
        "started": report.run.started,
        "suite": report.run.suite.version,
        "strictness": report.run.strictness,
        "seed": report.run.invocation.seed,
        "torch": report.accelerator.torch,
        "driver": report.accelerator.driver,
        "runtime": report.accelerator.runtime,
        "package": report.accelerator.package,
        **report.environment.facts,
    }
    return {plain(name): plain(value) if isinstance(value, str) else value for name, value in facts.items() if value}


def _letters(endings: Mapping[str, Ending], ids: Sequence[str]) -> str:
    return "".join(letter_of(endings[id]) if id in endings else ABSENT for id in ids)


def share(case: CaseRecord) -> str:
    """Return the used share of a case's error budget as a letter; ``0`` for an error of zero."""
    ratio = case.metrics.get(RATIO)
    if not isinstance(ratio, (int, float)) or math.isnan(ratio):
        return ABSENT
    if ratio <= 0:
        return "0"
    # An infinite error has no logarithm; it gets the last letter.
    power = math.ceil(_STEPS * math.log2(ratio)) if math.isfinite(ratio) else len(_SHARES)
    return _SHARES[min(max(power - _LEAST_SHARE, 0), len(_SHARES) - 1)]


def _texts(column: PageColumn, ids: Sequence[str]) -> tuple[tuple[list[str], list[int]], dict[int, Any]]:
    """Return messages (each once, with an index for each case), and metrics of failed cases and workloads."""
    known: dict[str, int] = {}
    message = [NO_MESSAGE] * len(ids)
    details: dict[int, Any] = {}
    room = _MOST_TEXT
    for place, id in enumerate(ids):
        case = column.cases.get(id)
        if case is None or room < 0:
            continue
        if text := plain(case.message).replace(id, THE_CASE)[:_LONGEST_MESSAGE]:
            room -= len(text) if text not in known else 0
            message[place] = known.setdefault(text, len(known))
        if case.outcome is Outcome.FAIL or case.tier == "workload":
            details[place] = {plain(name): _plain(value) for name, value in case.metrics.items()}
            room -= 30 * len(case.metrics)
    return (list(known), message), details


def _plain(value: Fact) -> Fact:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return plain(value) if isinstance(value, str) else value

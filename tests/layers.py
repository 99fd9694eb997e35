"""Layers of tests: what runs with every change, and what has the marker ``long``.

A test of which others repeat the habit says so itself, with ``longer``. A dear test, and most rows of a dear list, are
long by measurement: ``pytest -n 2 --seconds FILE tests`` writes what each takes, and ``python -m tests.layers FILE``
chooses them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEAR

#: Seconds from which a test is dear, or all tests together that share a run.
_SECONDS = 2.0
#: Seconds that the rows of one test function may take together. Of more, some stay, from all parts of the list.
_SECONDS_OF_ROWS = 3.0
#: What runs with every change whatever it takes, for it compares what ships with what makes it.
ALWAYS = (
    "docs/", "harness/test_known_cases.py", "reports/gate/test_manifests.py", "test_rooms.py",
    "reports/gate/test_honest_reports.py::test_the_published_reports_are_accepted",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose the dear tests and rows. Those that were not measured stay what they are."""
    parser = argparse.ArgumentParser(prog="python -m tests.layers", description=main.__doc__)
    parser.add_argument("seconds", metavar="FILE", type=Path, help="what pytest --seconds has written")
    options = parser.parse_args(arguments)
    measured: dict[str, tuple[float, str]] = json.loads(options.seconds.read_text(encoding="utf-8"))
    before: dict[str, float] = json.loads(DEAR.read_text(encoding="utf-8")) if DEAR.exists() else {}
    found = {name: taken for name, taken in before.items() if name not in measured} | dearest(measured)
    found |= rows_beyond({name: taken for name, taken in measured.items() if name not in found})
    DEAR.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n", encoding="utf-8")
    every = sum(taken for taken, _ in measured.values())
    left = every - sum(taken for name, (taken, _) in measured.items() if name in found)
    print(f"{len(found)} tests are dear; the others take {left:.0f} of {every:.0f} s")
    return 0


def dearest(measured: Mapping[str, tuple[float, str]]) -> dict[str, float]:
    """Return the dear tests with their seconds. Of each file, the cheapest tests stay that share a run, or one test."""
    together: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, (seconds, run) in measured.items():
        together[name.partition("::")[0]][run or name][name] = seconds
    found: dict[str, float] = {}
    for groups in together.values():
        _, *others = sorted(groups.values(), key=lambda group: sum(group.values()))
        for group in others:
            if sum(group.values()) >= _SECONDS:
                found |= {name: round(taken, 1) for name, taken in group.items() if not name.startswith(ALWAYS)}
    return found


def rows_beyond(measured: Mapping[str, tuple[float, str]]) -> dict[str, float]:
    """Return rows of dear lists with their seconds: those left are cheap together, and from all parts of the list.

    A row that shares a run with others stays, for the run takes the time.
    """
    lists: dict[str, dict[str, float]] = defaultdict(dict)
    for name, (seconds, run) in sorted(measured.items()):
        if not run and not name.startswith(ALWAYS):
            lists[name.partition("[")[0]][name] = seconds
    found: dict[str, float] = {}
    for rows in lists.values():
        stay = max(1, int(len(rows) * _SECONDS_OF_ROWS / max(sum(rows.values()), _SECONDS_OF_ROWS)))
        kept = {number * len(rows) // stay for number in range(stay)}
        found |= {name: round(taken, 1) for place, (name, taken) in enumerate(rows.items()) if place not in kept}
    return found


def longer(values: Iterable[Any], *kept: Any, step: int | None = None, repeating: Sequence[Any] = ()) -> list[Any]:
    """Return the values as parameters of which most are ``long``.

    The others are those in ``kept``; or with a ``step``, every value so far from the one before; or the first.
    Those in ``repeating`` take turns: they only repeat with other values what another parameter is for.
    """
    every = list(values)
    missing = [value for value in (*kept, *repeating) if value not in every]
    assert not missing, f"{missing} are no parameters"
    usual = {every.index(value) for value in kept} or set(range(0, len(every), step or len(every)))
    return [value if place in usual else _long(value, value in repeating) for place, value in enumerate(every)]


def _long(value: Any, repeats: bool) -> Any:
    """Return a parameter, or several in a tuple, with its markers."""
    marks = (pytest.mark.long, pytest.mark.repeats) if repeats else (pytest.mark.long,)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)


if __name__ == "__main__":
    sys.exit(main())

"""The rows of reported bugs, what came of each, and the scores: data that need neither torch nor a device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from tests.faults.scores import wilson

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUGS = Path(__file__).with_name("bugs.toml")
MEASURED = Path(__file__).with_name("measured.json")
#: Collection of a row that names none: the last one of those that have no number.
EARLIER = 3


@dataclass(frozen=True)
class Bug:
    """One report, and the fault that it tells of."""

    report: str
    backend: str
    what: str
    operator: tuple[str, ...]
    effect: str
    cases: tuple[str, ...]
    when: tuple[str, ...] = ()
    call: str = ""
    #: Whether the row is for measuring alone: no input was written after a look at it.
    held: bool = False
    #: Number of the collection. Rows of the first three do not say theirs; of these, the third one's alone are held.
    collection: int = EARLIER

    @property
    def is_collective(self) -> bool:
        """Return whether it is a bug of a function of ``torch.distributed``."""
        return self.operator[0].startswith("dist.")


@dataclass
class Found:
    """What came of a bug: whether its own call shows it, and the case that has found it."""

    report: str
    backend: str
    held_out: bool
    live: bool = False
    by: str = ""
    ran: int = 0
    error: str = ""
    what: str = field(default="", repr=False)
    collection: int = EARLIER

    @staticmethod
    def of(row: dict[str, Any]) -> Found:
        """Return what a committed row says."""
        names = {each.name for each in fields(Found)}
        return Found(**{name: value for name, value in row.items() if name in names})

    @property
    def end(self) -> str:
        """Return a word for what came of it."""
        return "found" if self.by else "missed" if self.live else "not shown"


def bugs() -> list[Bug]:
    """Return all rows."""
    rows = tomllib.loads(BUGS.read_text(encoding="utf-8"))["bug"]
    return [_bug(row) for row in rows]


def _bug(row: dict[str, Any]) -> Bug:
    operator = row["operator"]
    names = tuple(operator) if isinstance(operator, list) else (operator,)
    given = {**row, "operator": names, "when": tuple(row.get("when", ())), "cases": tuple(row["cases"])}
    return Bug(**given)


def score(results: Sequence[Found]) -> str:
    """Return the share of live bugs that a case has found, with Wilson's interval."""
    live = [found for found in results if found.live]
    count = sum(bool(found.by) for found in live)
    low, high = wilson(count, len(live))
    return f"{count} of {len(live)}: {count / len(live):.0%} ({low:.0%} to {high:.0%})" if live else "–"


def summary(results: Sequence[Found], *, by_backend: bool = True) -> str:
    """Return the scores of all bugs, of those that were held out in each collection, and by backend."""
    groups = [("all", list(results))]
    for number in sorted({found.collection for found in results if found.held_out}):
        name = "held out" if number == EARLIER else f"held out, collection {number}"
        groups.append((name, [found for found in results if found.held_out and found.collection == number]))
    names = sorted({found.backend for found in results}) if by_backend else []
    groups += [(f"`{name}`", [found for found in results if found.backend == name]) for name in names]
    rows = [(name, len(mine), sum(found.live for found in mine), score(mine)) for name, mine in groups]
    # Without the padding of tabulate: the pages have a limit.
    headers = ("bugs of", "reports", "live", "found"), ("---", "--:", "--:", "---")
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (*headers, *rows))


def table(results: Sequence[Found]) -> str:
    """Return a page with one line for each report."""
    rows = [
        (_link(found.report), found.backend, found.what, "yes" if found.held_out else "", found.end,
         f"`{found.by}`" if found.by else "")
        for found in results
    ]  # fmt: skip
    headers = ("report", "backend", "what was wrong", "held out", "", "by")
    return f"# Bugs of real backends\n\n{summary(results)}\n\n{tabulate(rows, headers, tablefmt='github')}\n"


def _link(report: str) -> str:
    repository, _, number = report.partition("#")
    return f"[{report}](https://github.com/{repository}/issues/{number})"

"""Which cases each mutant goes through, and what came out, as plain data that can be kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.reports.verdict import Outcome, Verdict
from conformance.selection import matches

from . import bench
from .mutant import How, Mutant

#: Every mutant goes through these areas, for the kill matrix.
MATRIX_AREAS = ("accelerator", "capabilities")
#: Cases that start processes of their own: a fault armed here is not armed there, so they can only cost time.
ELSEWHERE = (
    "accelerator.selection.*",
    "accelerator.environment.visible_count",
    "accelerator.environment.import_keeps_it",
    "capabilities.device.visibility",
)


@dataclass(frozen=True)
class Red:
    """A case that failed, and how."""

    case: str
    reason: str
    message: str


@dataclass(frozen=True)
class Result:
    """What the suite said about one mutant. ``ran`` counts the cases it went through."""

    name: str
    ran: int
    seconds: float
    reds: tuple[Red, ...]

    def catching(self, mutant: Mutant) -> list[Red]:
        """The failures that catch it: the case that must, for the reason that it must."""
        wanted = mutant.reason.value if mutant.reason else None
        return [red for red in self.reds if mutant.expects(red.case) and wanted in (None, red.reason)]

    def accused(self, mutant: Mutant) -> list[Red]:
        """Failures of cases that do not depend on what is broken."""
        return [red for red in self.reds if not mutant.may_fail(red.case)]


def everything() -> list[str]:
    """The cases of the kill matrix."""
    chosen = bench.select(f"{area}.*" for area in MATRIX_AREAS)
    return [case for case in chosen if not any(matches(pattern, case) for pattern in ELSEWHERE)]


def cases_of(mutant: Mutant) -> list[str]:
    """All cases that a mutant goes through."""
    named = bench.select([mutant.fault.caught_by, *mutant.also_run])
    if mutant.how is How.PYTEST:
        return named
    return list(dict.fromkeys([*everything(), *named]))


def naming_cases(mutant: Mutant) -> list[str]:
    """The cases alone that must catch it."""
    return bench.select([mutant.fault.caught_by])


def result_of(name: str, verdicts: dict[str, Verdict], seconds: float) -> Result:
    reds = (Red(id, v.reason.value, v.message) for id, v in verdicts.items() if v.outcome is Outcome.FAIL)
    return Result(name, len(verdicts), round(seconds, 2), tuple(reds))


def write(results: Sequence[Result], path: Path) -> None:
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def read(path: Path) -> list[Result]:
    rows = json.loads(path.read_text())
    return [Result(**{**row, "reds": tuple(Red(**red) for red in row["reds"])}) for row in rows]

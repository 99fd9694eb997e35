"""Which cases each mutant goes through, and what came out, as plain data that can be kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.plan.selection import matches
from conformance.reports.verdict import Outcome, Reason, Verdict

from . import bench
from .mutant import How, Mutant, StandIn

#: The name of the result without a mutant.
HEALTHY = "healthy"
#: Every mutant goes through these areas, for the kill matrix.
MATRIX_AREAS = ("accelerator", "capabilities")
#: Cases that start processes of their own: a fault armed here is not armed there, so they can only cost time. The
#: mutants that are armed there name them.
ELSEWHERE = (
    "accelerator.selection.*",
    "accelerator.environment.visible_count",
    "accelerator.environment.import_keeps_it",
    "capabilities.device.visibility",
)


@dataclass(frozen=True)
class Red:
    """A case that failed, and how. ``message`` is the part of its message that the mutant asks for."""

    case: str
    reason: str
    message: str = ""


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
        expected = [red for red in self.reds if mutant.expects(red.case) and wanted in (None, red.reason)]
        return [red for red in expected if mutant.message in red.message]

    def accused(self, mutant: Mutant) -> list[Red]:
        """Failures of cases that do not depend on what is broken. That nothing is declared accuses nobody."""
        said = (red for red in self.reds if red.reason != Reason.UNDECLARED.value)
        return [red for red in said if not mutant.may_fail(red.case)]


def everything() -> list[str]:
    """The cases of the kill matrix."""
    return bench.select(f"{area}.*" for area in MATRIX_AREAS)


def in_this_process() -> list[str]:
    """Those of them that every mutant goes through."""
    return [case for case in everything() if not any(matches(pattern, case) for pattern in ELSEWHERE)]


def cases_of(mutant: Mutant) -> list[str]:
    """All cases that a mutant goes through."""
    named = bench.select([mutant.fault.caught_by, *mutant.also_run])
    if mutant.how is How.PYTEST or mutant.stand_in:
        return named
    return list(dict.fromkeys([*in_this_process(), *named]))


def naming_cases(mutant: Mutant) -> list[str]:
    """The cases alone that must catch it."""
    return bench.select([mutant.fault.caught_by])


def quickest_case(mutant: Mutant, known: dict[str, Result]) -> list[str]:
    """The first case that was seen to catch it; all that must, if none was."""
    reds = known[mutant.name].catching(mutant) if mutant.name in known else []
    return [reds[0].case] if reds else naming_cases(mutant)


def sound_cases(stand_in: StandIn, mutants: Iterable[Mutant]) -> list[str]:
    """Return the cases that must catch these mutants, and that a sound stand-in has to pass."""
    cases = [case for mutant in mutants if mutant.stand_in is stand_in for case in naming_cases(mutant)]
    return [case for case in dict.fromkeys(cases) if case not in stand_in.red_when_sound]


def result_of(name: str, verdicts: dict[str, Verdict], seconds: float, message: str = "") -> Result:
    """Return what the verdicts say. Of their messages only ``message`` is kept, where it is a part of one."""
    failures = {id: verdict for id, verdict in verdicts.items() if verdict.outcome is Outcome.FAIL}
    reds = (Red(id, v.reason.value, message if message in v.message else "") for id, v in failures.items())
    return Result(name, len(verdicts), round(seconds, 2), tuple(reds))


@dataclass(frozen=True)
class Measured:
    """A measurement as it is kept: the checks that there were, and a result for each mutant."""

    checks: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def by_name(self) -> dict[str, Result]:
        return {result.name: result for result in self.results}

    def with_results(self, new: Iterable[Result]) -> Measured:
        """These results in place of the old ones of the same name, without a new look at the healthy accelerator."""
        fresh = {result.name: result for result in new if result.name != HEALTHY}
        return Measured(self.checks, tuple((self.by_name | fresh).values()))


def is_healthy(name: str) -> bool:
    """Whether a result is of an accelerator or a stand-in without a mutant."""
    return name == HEALTHY or name.startswith(f"{HEALTHY}: ")


def whole(results: Iterable[Result]) -> Measured:
    return Measured(tuple(bench.functions_of(everything())), tuple(results))


def write(measured: Measured, path: Path) -> None:
    """One line for each mutant, so that a change shows as one."""
    lines = [json.dumps({"checks": measured.checks})]
    for result in measured.results:
        row = {"name": result.name, "ran": result.ran, "seconds": result.seconds}
        lines.append(json.dumps(row | {"reds": {red.case: _kept(red) for red in result.reds}}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _kept(red: Red) -> str | list[str]:
    return [red.reason, red.message] if red.message else red.reason


def read(path: Path) -> Measured:
    """What was measured; nothing where there is no such file."""
    if not path.exists():
        return Measured((), ())
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return Measured(tuple(head["checks"]), tuple(_result(row) for row in rows))


def _result(row: dict[str, Any]) -> Result:
    reds = tuple(Red(case, *([kept] if isinstance(kept, str) else kept)) for case, kept in row["reds"].items())
    return Result(row["name"], row["ran"], row["seconds"], reds)

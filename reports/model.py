"""The canonical report: frozen dataclasses, and their JSON form in ``report.json``.

A member that holds its default is left out of the JSON, which keeps twenty thousand passing cases small. Reading
rejects unknown keys, wrong types, and everything that is too large. Same report, same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.errors import JournalError
from conformance.reports import profiles
from conformance.reports.json_files import collector_paused, read_json
from conformance.reports.plain_form import as_plain
from conformance.reports.plan_digest import declaration_sha256, plan_sha256
from conformance.reports.totals import Counts, ExitStatus, count, exit_status, idle_areas, tally
from conformance.reports.unpacking import unpack
from conformance.reports.validation import read
from conformance.reports.verdict import Outcome, Reason, check_pair

SCHEMA = 1
#: What views show of a time that no case can have taken; the gate rejects it.
LONGEST_SECONDS = 1e9

Fact = float | int | str


@dataclass(frozen=True)
class Suite:
    """The suite that ran. ``cases`` is how many were planned."""

    version: str
    manifest_sha256: str
    cases: int
    commit: str = ""


@dataclass(frozen=True)
class Invocation:
    """What was typed. ``selection`` holds the options that narrowed the plan; empty for a complete run.

    ``challenge`` is the word that the seed was made of, if there was one.
    """

    argv: tuple[str, ...] = ()
    selection: tuple[str, ...] = ()
    seed: int = 0
    workers: int = 0
    challenge: str = ""


@dataclass(frozen=True)
class Run:
    """One run. ``finished`` is empty when the run was killed; times are ISO 8601."""

    id: str
    started: str
    suite: Suite
    finished: str = ""
    invocation: Invocation = field(default_factory=Invocation)
    profile: str | None = None
    strictness: str = "ci"


@dataclass(frozen=True)
class Accelerator:
    """The subject, as it reported itself. ``spec`` is what was typed after ``--accelerator``.

    ``devices`` is how many there are, or the error that counting them raised.
    """

    name: str
    spec: str = ""
    device: str = ""
    devices: Fact = 0
    device_names: tuple[str, ...] = ()
    communication_backend: str = ""
    driver: str = ""
    runtime: str = ""
    torch: str = ""
    package: str = ""


@dataclass(frozen=True)
class Environment:
    """Allow-listed facts about the machine, and a hash of them."""

    fingerprint_sha256: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class DeclaredCell:
    """One written claim: a cell (or pattern), its state, how or why, and where it was written."""

    cell: str
    state: str
    detail: str = ""
    reason: str = ""
    source: str = ""


@dataclass(frozen=True)
class DeclarationRecord:
    sha256: str = ""
    cells: tuple[DeclaredCell, ...] = ()


@dataclass(frozen=True)
class WaiverRecord:
    """Which waivers the run used. ``used`` and ``stale`` are case ids."""

    sha256: str = ""
    used: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedRecord:
    """One planned case.

    An ``adaptive`` one is judged by the claim of its one cell, whatever that is. ``in_reference`` tells whether a
    pattern that claims support reaches the cell.
    """

    id: str
    area: str
    tier: str = "unit"
    axes: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    level: str = "standard"
    adaptive: bool = False
    in_reference: bool = True

    @property
    def facts(self) -> profiles.Record:
        """What a profile's predicate looks at."""
        own = {"area": self.area, "tier": self.tier, "axes": self.axes, "level": self.level}
        return {**own, "requires": self.requires}

    @property
    def column(self) -> tuple[str | None, str | None]:
        """Dtype and mode."""
        return self.axes.get("dtype"), self.axes.get("mode")


@dataclass(frozen=True)
class CaseRecord(PlannedRecord):
    """One case with its verdict. ``seconds`` is wall time; ``repro`` is a command line that repeats the case."""

    outcome: Outcome = Outcome.PASS
    reason: Reason = Reason.NATIVE
    message: str = ""
    metrics: Mapping[str, Fact] = field(default_factory=dict)
    seconds: float = 0.0
    ranks: int = 1
    repro: str = ""

    def __post_init__(self) -> None:
        check_pair(self.outcome, self.reason)


@dataclass(frozen=True)
class Accounting:
    """Planned against seen. The first three lists are empty in a conformant run.

    ``unaccounted`` were planned and have no verdict; ``in_flight`` are those of them that had begun.
    """

    unaccounted: tuple[PlannedRecord, ...] = ()
    duplicates: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()
    torn_lines: int = 0


@dataclass(frozen=True)
class Report:
    """Everything about one run. All views are functions of this."""

    run: Run
    accelerator: Accelerator
    environment: Environment = field(default_factory=Environment)
    declaration: DeclarationRecord = field(default_factory=DeclarationRecord)
    waivers: WaiverRecord = field(default_factory=WaiverRecord)
    accounting: Accounting = field(default_factory=Accounting)
    #: What the writer counted. Readers count again; the gate rejects a report whose totals are not its cases'.
    totals: Counts = field(default_factory=Counts)
    notes: tuple[str, ...] = ()
    cases: tuple[CaseRecord, ...] = ()

    @cached_property
    def counts(self) -> Counts:
        return count_cases(self.cases, self.accounting)

    @cached_property
    def idle_areas(self) -> tuple[str, ...]:
        """Areas where something is claimed and nothing ran."""
        return idle_areas((case.area, case.outcome, case.reason) for case in self.cases)

    @cached_property
    def standings(self) -> tuple[profiles.Standing, ...]:
        """How far each profile is verified."""
        kinds: dict[tuple[object, ...], list[CaseRecord]] = {}
        for case in self.cases:
            ranks, mode = profiles.on_ranks(case.area, case.requires), case.axes.get(profiles.MODE)
            seen = (case.area, ranks, case.tier, case.level, mode, case.outcome, case.reason)
            kinds.setdefault(seen, []).append(case)
        ended = [_tally(alike[0], len(alike)) for alike in kinds.values()]
        return profiles.standings([*ended, *map(_lost, self.accounting.unaccounted)])

    @property
    def badge(self) -> str | None:
        """The highest profile that is fully green. A run that left cases out, or lost one, earns none.

        A run of one profile says nothing of those that hold more, though all it ran of them may have passed.
        """
        if self.run.invocation.selection or self.exit_status() is ExitStatus.UNACCOUNTED:
            return None
        asked = self.run.profile or "full"
        inside = profiles.contained(asked) if asked in profiles.PROFILES else ()
        return profiles.badge(one for one in self.standings if one.name in inside)

    def exit_status(self) -> ExitStatus:
        disordered = bool(self.accounting.duplicates or self.accounting.unknown)
        return exit_status(self.counts, disordered=disordered, idle=bool(self.idle_areas))


def count_cases(cases: Iterable[CaseRecord], accounting: Accounting) -> Counts:
    """How the cases ended, with those that have no verdict."""
    seen = tally((case.outcome, case.reason) for case in cases)
    return seen + tally((None, None) for _ in accounting.unaccounted)


def manifest_sha256(report: Report) -> str:
    """The hash of what the report's cases say was planned; an honest report names it as its manifest's."""
    return plan_sha256(report.run.suite.version, (*report.cases, *report.accounting.unaccounted))


def declared_sha256(cells: Iterable[DeclaredCell]) -> str:
    """The hash of these claims; that of an unredacted declaration is the same."""
    return declaration_sha256((one.cell, one.state, one.detail or None, one.reason) for one in cells)


def _tally(case: CaseRecord, number: int) -> profiles.Tally:
    """So many cases that ended like this one and are of the same profiles."""
    one = count(case.outcome, case.reason)
    return profiles.Tally(case.facts, bool(one.claimed), bool(one.passed), bool(one.failed), number)


def _lost(planned: PlannedRecord) -> profiles.Tally:
    return profiles.Tally(planned.facts, claimed=True, passed=False, failed=False)


def to_json(report: Report) -> str:
    """The canonical text: one case a line, so that two reports can be compared line by line."""
    head = {"schema": SCHEMA, **as_plain(report)}
    cases = head.pop("cases", [])
    lines = [f"{_compact(name)}: {_compact(value)}" for name, value in head.items()]
    rows = ",\n".join(_compact(case) for case in cases)
    return "{\n" + ",\n".join([*lines, f'"cases": [\n{rows}\n]' if rows else '"cases": []']) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def from_json(value: Any, where: str = "report.json") -> Report:
    """The report that a JSON value describes; JournalError names the first thing that is wrong with it."""
    if not isinstance(value, dict) or "schema" not in value or "run" not in value:
        raise JournalError(f"{where} is not a conformance report: it has no 'schema' and 'run'.")
    if value["schema"] != SCHEMA:
        raise JournalError(f"{where} has schema {value['schema']!r}; this version reads schema {SCHEMA}.")
    if "packed" in value:
        value = unpack(value, where)
    report = read(Report, {name: one for name, one in value.items() if name != "schema"}, where)
    _reject_repeated_ids(report, where)
    return report


def _reject_repeated_ids(report: Report, where: str) -> None:
    seen: set[str] = set()
    for case in (*report.cases, *report.accounting.unaccounted):
        if case.id in seen:
            raise JournalError(f"{where} lists the case {case.id!r} twice.")
        seen.add(case.id)


def read_report(path: Path) -> Report:
    """Read a ``report.json``."""
    with collector_paused():
        return from_json(read_json(path), str(path))

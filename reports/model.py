"""Canonical report: frozen dataclasses. ``conformance.reports.report_json`` writes and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from conformance.reports import profiles
from conformance.reports.groups import CaseGroup, grouped
from conformance.reports.planned import PlannedCase, declaration_sha256, plan_sha256
from conformance.reports.totals import Counts, ExitStatus, exit_status, idle_areas, tally
from conformance.reports.verdict import Outcome, Reason, check_pair

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
class AcceleratorRecord:
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
class CaseRecord(PlannedCase):
    """Planned case with its verdict.

    ``seconds`` is wall time, ``ranks`` the number of processes that ran the body, and ``repro`` a command line that
    repeats the case.
    """

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

    unaccounted: tuple[PlannedCase, ...] = ()
    duplicates: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()
    torn_lines: int = 0


@dataclass(frozen=True)
class Report:
    """Everything about one run. All views are functions of this."""

    run: Run
    accelerator: AcceleratorRecord
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
    def groups(self) -> tuple[CaseGroup, ...]:
        """Return the cases in groups that profiles and gate rules treat alike."""
        return grouped(self.cases)

    @cached_property
    def profile_results(self) -> tuple[profiles.ProfileResult, ...]:
        """Return how far each profile is verified."""
        return profiles.profile_results(self.groups, self.accounting.unaccounted)

    @property
    def badge(self) -> str | None:
        """The highest profile that is fully green. A run that left cases out, or lost one, earns none.

        A run of one profile says nothing of those that hold more, though all it ran of them may have passed.
        """
        if self.run.invocation.selection or self.exit_status() is ExitStatus.UNACCOUNTED:
            return None
        asked = self.run.profile or "full"
        inside = profiles.contained(asked) if asked in profiles.PROFILES else ()
        return profiles.badge(result for result in self.profile_results if result.name in inside)

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

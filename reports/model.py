"""Canonical report: frozen dataclasses. ``conformance.reports.report_json`` writes and reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from conformance.reports import profiles
from conformance.reports.breadth import Breadth, breadth, kernel_origins
from conformance.reports.groups import CaseGroup, grouped
from conformance.reports.planned import PlannedCase, declaration_sha256, plan_sha256
from conformance.reports.totals import Counts, ExitStatus, exit_status, idle_areas, tally
from conformance.reports.verdict import Outcome, Reason, check_pair

#: Format of a report that this version writes. Format 1 has no plugins, variables, shards and hash of suite files.
LATEST_SCHEMA = 2
#: The first format that records the whole stack.
RECORDS_STACK = 2
#: Longest time that views show for a case. The gate rejects longer ones.
LONGEST_SECONDS = 1e9

Fact = float | int | str
#: Metric of a case on ranks: the number of processes that reported how its body ended.
PROCESSES = "processes"


@dataclass(frozen=True)
class Suite:
    """Suite of a run. ``cases`` is the number of planned cases; ``files_sha256`` is over the installed files."""

    version: str
    manifest_sha256: str
    cases: int
    commit: str = ""
    files_sha256: str = ""


@dataclass(frozen=True)
class Invocation:
    """Command line of a run. ``selection`` has the options that narrowed the plan; it is empty for a complete run.

    ``challenge`` is the nonce from which the seed was derived, if there was one. ``shards`` is the number of reports
    that were merged; 0 for the report of one run.
    """

    argv: tuple[str, ...] = ()
    selection: tuple[str, ...] = ()
    seed: int = 0
    workers: int = 0
    challenge: str = ""
    shards: int = 0


@dataclass(frozen=True)
class Run:
    """Run of the suite. Times are ISO 8601; ``finished`` is empty if the run was killed."""

    id: str
    started: str
    suite: Suite
    finished: str = ""
    invocation: Invocation = field(default_factory=Invocation)
    profile: str | None = None
    strictness: str = "ci"


@dataclass(frozen=True)
class AcceleratorRecord:
    """Accelerator under test, as it reported itself. ``spec`` is the value of ``--accelerator``.

    ``devices`` is their number, or the error that counting them raised.
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
    torch_build: str = ""


@dataclass(frozen=True)
class Environment:
    """Environment of a run: allow-listed facts about the machine, and the hash of the whole stack.

    ``plugins`` are the plugins of pytest that were loaded, besides pytest's own: ``NAME VERSION`` of an installed
    package, or the name of a module that belongs to none. ``variables`` are the environment variables that change
    results.
    """

    fingerprint_sha256: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    variables: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class DeclaredCell:
    """Written claim: a cell or pattern, its state, how it is supported or why not, and where it was written."""

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
    """Waivers of a run. ``used`` and ``stale`` are case ids."""

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

    #: Members that ``__post_init__`` checks, and nothing else: readers of many cases check each combination once.
    checked_together: ClassVar = ("outcome", "reason")

    def __post_init__(self) -> None:
        check_pair(self.outcome, self.reason)


@dataclass(frozen=True)
class Accounting:
    """Comparison of planned and seen cases. The first three lists are empty in a conformant run.

    ``unaccounted`` were planned and have no verdict; ``in_flight`` are those of them that had begun.
    """

    unaccounted: tuple[PlannedCase, ...] = ()
    duplicates: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()
    torn_lines: int = 0


@dataclass(frozen=True)
class Report:
    """Report of one run. All views are functions of it."""

    run: Run
    accelerator: AcceleratorRecord
    environment: Environment = field(default_factory=Environment)
    declaration: DeclarationRecord = field(default_factory=DeclarationRecord)
    waivers: WaiverRecord = field(default_factory=WaiverRecord)
    accounting: Accounting = field(default_factory=Accounting)
    #: Counts of the writer. Readers count again, and the gate rejects a report whose totals differ from its cases.
    totals: Counts = field(default_factory=Counts)
    notes: tuple[str, ...] = ()
    #: Format of the file. It says what the run recorded.
    schema: int = LATEST_SCHEMA
    #: A tuple; a table of a large report, which makes a record when it is asked for.
    cases: Sequence[CaseRecord] = ()

    @cached_property
    def counts(self) -> Counts:
        return count_cases(self.cases, self.accounting)

    @cached_property
    def idle_areas(self) -> tuple[str, ...]:
        """Return the areas where something is claimed and nothing ran."""
        return idle_areas((case.area, case.outcome, case.reason) for case in self.cases if case.of_device)

    @cached_property
    def groups(self) -> tuple[CaseGroup, ...]:
        """Return the cases in groups that profiles and gate rules treat alike."""
        return grouped(self.cases)

    @cached_property
    def profile_results(self) -> tuple[profiles.ProfileResult, ...]:
        """Return how far each profile is verified."""
        return profiles.profile_results(self.groups, self.accounting.unaccounted)

    @cached_property
    def breadth(self) -> Breadth:
        """Return how many of the planned cases the accelerator claims as its own."""
        return breadth(self.groups, len(self.accounting.unaccounted))

    @cached_property
    def kernel_origins(self) -> Mapping[str, Counter[str]]:
        """Return whose kernels ran in the passed cases of each area with kernels."""
        return kernel_origins(self.cases)

    @property
    def profile_text(self) -> str:
        """Return the profile with the breadth, which every place that names the profile shows."""
        return f"{self.badge or 'none'} · {self.breadth}"

    @cached_property
    def badge(self) -> str | None:
        """Return the largest profile that is fully green. A run that left cases out, or lost one, earns none.

        A run of one profile earns no larger profile, even if everything that it ran of the larger one passed.
        """
        if self.run.invocation.selection or self.exit_status() is ExitStatus.UNACCOUNTED:
            return None
        asked = self.run.profile or "full"
        inside = profiles.contained(asked) if asked in profiles.PROFILES else ()
        return profiles.badge(result for result in self.profile_results if result.name in inside)

    @cached_property
    def _reasons(self) -> frozenset[Reason]:
        return frozenset(case.reason for case in self.cases)

    def exit_status(self) -> ExitStatus:
        disordered = bool(self.accounting.duplicates or self.accounting.unknown)
        internal = any(reason.facts.is_internal for reason in self._reasons)
        return exit_status(self.counts, disordered=disordered, idle=bool(self.idle_areas), internal=internal)


def count_cases(cases: Iterable[CaseRecord], accounting: Accounting) -> Counts:
    """Return the counts of the cases, with those that have no verdict."""
    seen = tally((case.outcome, case.reason, case.of_device) for case in cases)
    return seen + tally((None, None, planned.of_device) for planned in accounting.unaccounted)


def manifest_sha256(report: Report) -> str:
    """Return the hash of the plan that the report's cases describe. An honest report has it as its manifest's hash."""
    planned: Sequence[PlannedCase] = report.cases
    if report.accounting.unaccounted:
        planned = (*report.cases, *report.accounting.unaccounted)
    return plan_sha256(report.run.suite.version, planned)


def declared_sha256(cells: Iterable[DeclaredCell]) -> str:
    """Return the hash of these claims. Redaction does not change it."""
    return declaration_sha256((claim.cell, claim.state, claim.detail or None, claim.reason) for claim in cells)

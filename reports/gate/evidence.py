"""Everything the gate looks at, as values: the same evidence gives the same decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from conformance.reports.gate.claim_book import ClaimBook
from conformance.reports.gate.manifests import RELEASES, Manifest
from conformance.reports.gate.policy import Policy
from conformance.reports.model import CaseRecord, Report
from conformance.reports.waivers.applying import Settled, settle
from conformance.reports.waivers.model import Waiver


@dataclass(frozen=True)
class SignatureCheck:
    """What ``ssh-keygen`` said of a signature. ``problem`` is a sentence, and empty if it is good."""

    principal: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Evidence:
    """A report, and what it is held against.

    ``waivers`` is None without a waiver file; ``signature`` is None if nobody looked for one. ``fingerprint`` is the
    environment that the report has to come from, if one was named.
    """

    report: Report
    policy: Policy
    now: datetime
    manifest: Manifest | None = None
    baseline: Report | None = None
    waivers: tuple[Waiver, ...] = ()
    signature: SignatureCheck | None = None
    fingerprint: str = ""
    releases: tuple[str, ...] = RELEASES

    @property
    def profile(self) -> str:
        return self.policy.profile

    @cached_property
    def cases(self) -> Mapping[str, CaseRecord]:
        return {case.id: case for case in self.report.cases}

    @cached_property
    def required(self) -> frozenset[str]:
        """The ids that the profile needs; without a manifest all that the report has."""
        return frozenset(self.cases) if self.manifest is None else self.manifest.required(self.profile)

    @cached_property
    def scope(self) -> tuple[CaseRecord, ...]:
        """The report's cases that the profile needs."""
        required = self.required
        return tuple(case for case in self.report.cases if case.id in required)

    @cached_property
    def claims(self) -> ClaimBook:
        return ClaimBook(self.report.declaration.cells)

    @cached_property
    def settled(self) -> Settled:
        """The waivers held against what the run saw."""
        return settle(self.report, self.waivers, self.now.date())

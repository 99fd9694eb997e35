"""Evidence: all inputs of the gate as values. Equal evidence gives equal decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from conformance.base.claim_lookup import ClaimLookup
from conformance.reports.declaration.claims import claims_of
from conformance.reports.gate.command_line import typed
from conformance.reports.gate.manifests import RELEASES, Manifest
from conformance.reports.groups import CaseGroup, grouped
from conformance.reports.model import CaseRecord, Report, manifest_sha256
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import PROFILES, Policy, contained, containing
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import WaiverOutcome, waiver_outcome
from conformance.reports.waivers.model import Waiver


@dataclass(frozen=True)
class SignatureCheck:
    """Result of checking a signature. ``problem`` is a sentence, or empty if the signature is valid."""

    principal: str = ""
    problem: str = ""
    #: Patterns of the accelerators that the principal may sign for; None if nobody has bound the signers.
    accelerators: tuple[str, ...] | None = None
    #: Every principal of the key; ``principal`` has them for people.
    principals: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateEvidence:
    """Report, and everything that the gate compares it with.

    ``signature`` is None if no signature was requested. ``fingerprint`` is the required environment, ``challenge`` the
    required nonce and ``accelerator`` the required name; each is empty if none was named. ``profile_is_named`` tells
    whether the reviewer named the profile; otherwise it is the run's own.
    """

    report: Report
    policy: Policy
    now: datetime
    manifest: Manifest | None = None
    baseline: Report | None = None
    waivers: tuple[Waiver, ...] = ()
    signature: SignatureCheck | None = None
    fingerprint: str = ""
    challenge: str = ""
    accelerator: str = ""
    profile_is_named: bool = True
    releases: tuple[str, ...] = RELEASES
    #: Hash of the files of the suite that is installed beside the gate; empty if nobody looked.
    suite_files: str = ""
    #: Torch series with a released manifest of the run's suite.
    series: tuple[str, ...] = ()

    @property
    def profile(self) -> str:
        return self.policy.profile

    @property
    def signer(self) -> str:
        """Return the principal whose signature is valid, or an empty text."""
        return self.signature.principal if self.signature and not self.signature.problem else ""

    @cached_property
    def cases(self) -> Mapping[str, CaseRecord]:
        if isinstance(self.report.cases, tuple):
            return {case.id: case for case in self.report.cases}
        # Imported here, because small reports do not need it.
        from conformance.reports.case_table import CaseIndex, CaseTable

        cases = self.report.cases
        return CaseIndex(cases) if isinstance(cases, CaseTable) else {case.id: case for case in cases}

    @cached_property
    def plan_sha256(self) -> str:
        """Return the hash of the plan that the report's cases describe."""
        return manifest_sha256(self.report)

    @cached_property
    def planned_profile(self) -> str | None:
        """Return the profile whose released plan equals that of the report's cases, or None."""
        if self.manifest is None or self.manifest.suite != self.report.run.suite.version:
            return None
        fitting = (name for name, sha256 in self.manifest.sha256.items() if sha256 == self.plan_sha256)
        return next((name for name in fitting if name in containing(self.profile)), None)

    @cached_property
    def required(self) -> frozenset[str]:
        """Return the ids that the profile requires; without a manifest, all ids of the report."""
        if self.manifest is None:
            return frozenset(self.cases)
        if self.planned_profile is None:
            return self.manifest.required(self.profile)
        lost = (planned.id for planned in self.report.accounting.unaccounted if self._holds(planned))
        return frozenset(case.id for group in self.groups for case in group.cases).union(lost)

    @cached_property
    def groups(self) -> tuple[CaseGroup, ...]:
        """Return the groups of the report's cases that the profile requires."""
        if self.manifest is not None and self.planned_profile is None:
            return grouped(case for case in self.report.cases if case.id in self.required)
        return tuple(group for group in self.report.groups if self._holds(group.first))

    def _holds(self, planned: PlannedCase) -> bool:
        """Return whether a case is required. Without a manifest, and in a run of exactly the profile, every case is."""
        if self.planned_profile in (None, self.profile):
            return True
        return any(PROFILES[name].own(planned) for name in contained(self.profile))

    def is_planned(self, id: str) -> bool:
        """Return whether this version of the suite has the case."""
        return self.manifest is None or id in self.cases or id in self.manifest.cases

    @cached_property
    def claims(self) -> ClaimLookup:
        """Return the lookup of the report's claims."""
        return claims_of(self.report)

    @cached_property
    def core_cells(self) -> frozenset[str]:
        """Return the cells of the mandatory core: those that its cases require."""
        core = (group for group in self.report.groups if group.level == "core" and group.first.of_device)
        return frozenset(cell for group in core for case in group.cases for cell in case.requires)

    @cached_property
    def waiver_outcome(self) -> WaiverOutcome:
        """Return the effects of the waivers on what the run saw."""
        return waiver_outcome(self.report, self.waivers, self.now.date())

    @cached_property
    def due(self) -> tuple[CaseGroup, ...]:
        """Return the required cases that have to pass: the core always, and everything else that is claimed.

        Whether a case is rightly unclaimed is checked by the rule on honesty.
        """
        return tuple(group for group in self.groups if _is_due(group))

    @cached_property
    def had_waivers(self) -> bool:
        """Return whether the run was typed with waivers. Without them, no verdict can be made by one."""
        return typed(self.report.run.invocation.argv, "--waivers") is not None

    def unmet(self, group: CaseGroup) -> Iterator[CaseRecord]:
        """Yield the cases of the group that neither passed nor failed as a valid waiver says."""
        waived = self.waiver_outcome.waived
        if group.outcome is Outcome.PASS or (group.reason is Reason.WAIVER_STALE and self.had_waivers):
            if waived and group.level == "core":
                yield from (case for case in group.cases if case.id in waived)
            return
        yield from (case for case in group.cases if case.id not in waived or group.level == "core")


def _is_due(group: CaseGroup) -> bool:
    """Return whether the cases have to pass. Those that are not about the device are due only if they failed."""
    if not group.first.of_device:
        return group.outcome is Outcome.FAIL
    return group.level == "core" or group.outcome is not Outcome.SKIP or group.reason.facts.claimed

"""Admission of reports to the published page: which must not appear on it, and what the gate says of the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.manifests import released
from conformance.reports.gate.rules import decide
from conformance.reports.gate.rules.names import misleading_name
from conformance.reports.gate.rules.run_facts import is_in_the_future
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line
from conformance.reports.profiles import PROFILES, find_policy
from conformance.reports.waivers.model import Waiver


def refusal(report: Report, now: datetime) -> str:
    """Return why a report must not be on the page; empty if it may be.

    The newest run is the column of its accelerator. A run of the future would stay the newest one, and a name that
    looks like another one would take the place of another column.
    """
    if is_in_the_future(report, now):
        started = one_line(report.run.started, 40) or "(no date)"
        return f"The run is dated {started}, which is in the future or is no date with a time zone."
    return misleading_name(report)


def judge(report: Report, now: datetime, signer: str, waivers: tuple[Waiver, ...] = ()) -> Decision:
    """Return the gate's decision by the run's own profile. Its age is no reason: the page shows history."""
    profile = report.run.profile if report.run.profile in PROFILES else None
    return decide(
        GateEvidence(
            report,
            replace(find_policy(profile or "full"), max_age=timedelta.max),
            now,
            waivers=waivers,
            manifest=released(report.run.suite.version, report.accelerator.torch),
            signature=SignatureCheck(signer) if signer else None,
            profile_is_named=False,
        )
    )

"""Honest reports, which tests change: the published ones in a smaller plan, and runs like them."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.manifests import Manifest, make_manifest
from conformance.reports.gate.rules import decide
from conformance.reports.loading import load
from conformance.reports.model import LATEST_SCHEMA, PROCESSES, Report, WaiverRecord
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import find_policy
from conformance.reports.stack import with_fingerprint
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.file import read_waivers
from conformance.reports.waivers.model import Waiver

from .world import FILES, PLUGINS, consistent

PUBLISHED = Path(__file__).parents[3] / "reports" / "published" / "runs"
KNOWN_FAILURES = Path(__file__).parents[3] / "accelerators" / "waivers"
DAY = timedelta(days=1)
#: What a workload measures: the times of a step, and how much is done in a second.
SPEEDS = ("step_ms_median", "step_ms_p90", "tokens_per_s", "samples_per_s")
#: One of so many cases stays in the reports that are attacked, so that many attacks are judged in a short time.
SAMPLE = 8


@cache
def published(name: str) -> Report:
    """Return a published run; that of a simulated device without waivers, and without the cases that these waive."""
    report = latest(as_published(name))
    if name == "cpu" or not (known := waivers_of(name)):
        return report
    kept = [case for case in report.cases if not any(waiver.covers(case.id) for waiver in known)]
    words = report.run.invocation.argv
    argv = tuple(
        word
        for before, word in zip(("", *words), words, strict=False)
        if "--waivers" not in (before, word.split("=")[0])
    )
    run = replace(report.run, invocation=replace(report.run.invocation, argv=argv))
    return mended(replace(report, run=run, cases=tuple(kept)))


@cache
def as_published(name: str) -> Report:
    return load(PUBLISHED / f"{name}.json.gz")


def waivers_of(name: str) -> tuple[Waiver, ...]:
    """Return the known failures of a published accelerator; none for most."""
    path = KNOWN_FAILURES / f"{name}.toml"
    return read_waivers(path) if path.is_file() else ()


def latest(report: Report) -> Report:
    """Return the report as a run of today writes it: a published one may be of an older format."""
    suite = replace(report.run.suite, files_sha256=report.run.suite.files_sha256 or FILES)
    accelerator = replace(report.accelerator, torch_build=report.accelerator.torch_build or "2f3c")
    environment = replace(report.environment, plugins=report.environment.plugins or PLUGINS)
    cases = tuple(
        replace(case, metrics={**case.metrics, PROCESSES: case.ranks})
        if case.ranks > 1 and case.outcome is Outcome.PASS
        else case
        for case in report.cases
    )
    run = replace(report.run, suite=suite)
    return with_fingerprint(
        replace(report, run=run, accelerator=accelerator, environment=environment, cases=cases, schema=LATEST_SCHEMA)
    )


@cache
def honest(name: str = "sim") -> Report:
    """Return a published run of a smaller plan: every core case, each eighth other one, and one with each metric."""
    report = published(name)
    first = {metric: case.id for case in reversed(report.cases) for metric in case.metrics}
    ids = set(first.values())
    kept = [c for n, c in enumerate(report.cases) if c.level == "core" or n % SAMPLE == 0 or c.id in ids]
    return mended(replace(report, cases=tuple(kept)))


def mended(report: Report) -> Report:
    """Return the report with every count, list and hash made to fit."""
    lists = {
        name: tuple(case.id for case in report.cases if case.reason is reason)
        for name, reason in (("used", Reason.WAIVED), ("stale", Reason.WAIVER_STALE))
    }
    return consistent(replace(report, waivers=WaiverRecord(**lists)))


def manifest_of(report: Report) -> Manifest:
    names = [field.name for field in fields(PlannedCase)]
    plan = [PlannedCase(**{name: getattr(case, name) for name in names}) for case in report.cases]
    # The published reports do not name the number of ranks among the properties of the plan.
    sized = [
        replace(planned, world_size=case.ranks) if case.ranks > 1 else planned
        for planned, case in zip(plan, report.cases, strict=True)
    ]
    # The hash of the plan is that of the report's cases.
    manifest = make_manifest(report.run.suite.version, report.accelerator.torch, sized)
    return replace(manifest, sha256=make_manifest(report.run.suite.version, report.accelerator.torch, plan).sha256)


@cache
def honest_manifest(name: str = "sim") -> Manifest:
    return manifest_of(honest(name))


def judged(report: Report, manifest: Manifest | None = None, **changes: Any) -> Decision:
    known = {"policy": find_policy("full"), "now": _newest() + DAY, "manifest": manifest or honest_manifest()}
    return decide(GateEvidence(report, **{**known, **changes}))


@cache
def _newest() -> datetime:
    """Return when the last of the published runs ended: each is published on a day of its own."""
    names = (path.name.partition(".")[0] for path in PUBLISHED.glob("*.json.gz"))
    return max(datetime.fromisoformat(as_published(name).run.finished) for name in names)


def rules_of(decision: Decision) -> set[str]:
    return {finding.rule for finding in decision.rejections}


def earlier(report: Report) -> Report:
    """Return another honest run of the same accelerator, five days before, with durations and speeds of its own."""
    chance = random.Random(0)
    start, end = (datetime.fromisoformat(text) - 5 * DAY for text in (report.run.started, report.run.finished))
    cases = []
    for case in report.cases:
        share = chance.uniform(0.9, 0.99)
        speeds = {
            name: value * share if name.startswith("step_ms") else value / share
            for name, value in case.metrics.items()
            if name in SPEEDS and isinstance(value, float)
        }
        cases.append(replace(case, seconds=round(case.seconds * share, 6), metrics={**case.metrics, **speeds}))
    run = replace(report.run, id="earlier", started=start.isoformat(), finished=end.isoformat())
    return replace(report, run=run, cases=tuple(cases))

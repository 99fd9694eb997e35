"""A profile needs breadth, and says how broad the run is wherever it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from conformance.reports import diff
from conformance.reports.breadth import is_borrowed
from conformance.reports.gate import views as gate_views
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.rules import decide
from conformance.reports.loading import load
from conformance.reports.model import CaseRecord, Report
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.page.publish import files
from conformance.reports.profiles import PROFILES, find_policy
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.views import badge, endpoint, markdown, summary, text

from .gate.world import NOW, consistent, honest

RUNS = Path(__file__).parents[2] / "reports" / "published" / "runs"
#: What a declaration of three cells supports, besides the core.
THREE = {"stream", "event", "memory.stats"}


@cache
def published(name: str) -> Report:
    return load(RUNS / f"{name}.json.gz")


def with_claims(report: Report, claims: Callable[[CaseRecord], bool]) -> Report:
    """The report of a device that passes what it claims, and is silent about everything else."""
    return consistent(replace(report, cases=tuple(
        replace(case, outcome=Outcome.PASS, reason=Reason.NATIVE)
        if claims(case)
        else replace(case, outcome=Outcome.SKIP, reason=Reason.UNDECLARED)
        for case in report.cases
    )))  # fmt: skip


def test_three_cells_earn_no_profile_beyond_the_core() -> None:
    report = with_claims(published("sim"), lambda case: case.level == "core" or {*case.requires} <= THREE)

    assert report.badge == "core"
    lacks = {result.name: result.lacks for result in report.profile_results}
    assert any(re.fullmatch(r"operators 0 of \d+ cases claimed", lack) for lack in lacks["inference"])
    assert "comm.average is not claimed" in lacks["distributed"]
    assert any(re.fullmatch(r"pipe 0 of \d+ cases claimed", lack) for lack in lacks["distributed"])


@pytest.mark.parametrize("missing", PROFILES["distributed"].needs[1:])
def test_distributed_needs_every_collective(missing: str) -> None:
    report = with_claims(published("sim"), lambda case: missing not in case.requires)

    assert report.badge == "training"
    assert f"{missing} is not claimed" in {r.name: r.lacks for r in report.profile_results}["distributed"]


def test_an_area_without_claims_keeps_a_run_from_full() -> None:
    report = with_claims(published("sim"), lambda case: case.area != "inference")

    assert report.badge == "distributed"
    (lack,) = report.profile_results[-1].lacks
    assert re.fullmatch(r"inference 0 of \d+ cases claimed", lack)


def test_what_everybody_can_claim_earns_full() -> None:
    assert with_claims(published("cpu"), lambda case: case.axes.get("dtype") in (None, "float32")).badge == "full"


@pytest.mark.parametrize(
    ("origin", "reason", "borrowed"),
    [
        ("vendor", Reason.NATIVE, False),
        ("vendor", Reason.EMULATED, False),
        ("native", Reason.NATIVE, True),
        ("reference", Reason.EMULATED, True),
        (None, Reason.EMULATED, True),
        (None, Reason.NATIVE, True),
    ],
)
def test_kernels_that_are_not_the_vendors_do_not_count(origin: str | None, reason: Reason, borrowed: bool) -> None:
    metrics = {"implementation": origin} if origin else {}
    kernel = CaseRecord(
        "ops.x", "ops", requires=("kernels.x[float32-inference]",), outcome=Outcome.PASS, reason=reason, metrics=metrics
    )

    assert is_borrowed(kernel) is borrowed
    assert not is_borrowed(replace(kernel, requires=("op-builders",)))
    counted = replace(honest(), cases=(*honest().cases, kernel)).breadth.claimed - honest().breadth.claimed
    assert counted == (0 if borrowed else 1)


def with_kernels() -> Report:
    """A run that shows one kernel of each origin."""
    shown = [
        ("vendor", Reason.NATIVE),
        ("native", Reason.NATIVE),
        ("reference", Reason.EMULATED),
        ("<b>", Reason.NATIVE),
    ]
    kernels = tuple(
        CaseRecord(f"ops.{n}", "ops", requires=("kernels.x",), reason=reason, metrics={"implementation": origin})
        for n, (origin, reason) in enumerate(shown)
    )
    return consistent(replace(honest(), cases=(*honest().cases, *kernels)))


def decision_of(report: Report) -> gate_views.Decision:
    return decide(GateEvidence(report, find_policy("training"), NOW))


def test_every_place_with_a_profile_shows_the_breadth() -> None:
    report = with_kernels()
    said = "training · 10 of 16 cases claimed"
    page = files(make_columns([PublishedReport(report)]))

    assert f"profile: {said}" in text.render(report)
    assert f"profile {said}" in markdown.render(report)
    assert f"profile {said}" in summary.render(report)
    assert said in badge.render(report)
    assert json.loads(endpoint.render(report))["message"] == said
    assert said in page["index.html"]
    assert json.loads(page["matrix.json"])["accelerators"][0]["breadth"] == {"claimed": 10, "planned": 16}
    assert f"profile {said}" in diff.text(diff.compare(report, report))
    assert f"profile {said}" in diff.as_markdown(diff.compare(report, report))
    decision = decision_of(report)
    assert f"profile {said}" in gate_views.text(decision)
    assert f"profile {said}" in gate_views.as_markdown(decision)
    assert json.loads(gate_views.as_json(decision))["breadth"] == {"claimed": 10, "planned": 16}


@pytest.mark.parametrize(("profile", "said"), [("core", False), ("distributed", True), ("full", True), ("", True)])
def test_a_run_says_what_larger_profiles_need_only_if_it_has_their_cases(profile: str, said: bool) -> None:
    """A run of the core has no case about collectives, whatever is declared about them."""
    alone = tuple(case for case in honest().cases if case.outcome is Outcome.PASS)
    report = consistent(replace(honest(), cases=alone))
    report = replace(report, run=replace(report.run, profile=profile))

    assert ("distributed needs more claims: comm is not claimed" in text.render(report)) is said


def test_whose_kernels_ran_is_shown_in_columns() -> None:
    report = with_kernels()
    decision = decision_of(report)

    lines = [line.split() for line in text.render(report).splitlines()]
    assert ["kernels", "of", "vendor", "native", "reference", "unknown"] in lines
    assert ["ops", "1", "1", "1", "1"] in lines
    assert "| area | vendor | native | reference | unknown |" in markdown.render(report)
    assert "| ops | 1 | 1 | 1 | 1 |" in summary.render(report)
    assert "kernels of ops: 1 vendor, 1 native, 1 reference, 1 unknown" in gate_views.text(decision)
    assert "| ops | 1 | 1 | 1 | 1 |" in gate_views.as_markdown(decision)
    assert "1 vendor, 1 native, 1 reference" in files(make_columns([PublishedReport(report)]))["index.html"]
    assert "kernels of" not in text.render(honest())


def test_g19_too_little_is_claimed() -> None:
    report = with_claims(published("sim"), lambda case: case.level == "core" or {*case.requires} <= THREE)

    found = [f for f in decide(GateEvidence(report, find_policy("full"), NOW)).findings if f.rule == "G19"]

    assert len(found) == 1
    assert found[0].sentence.startswith("Too little is claimed for the profile full: ")
    assert "comm.average is not claimed" in found[0].cases
    (lack,) = (lack for lack in found[0].cases if lack.startswith("operators "))
    assert re.fullmatch(r"operators 0 of \d+ cases claimed", lack)


def test_g19_the_core_needs_no_breadth() -> None:
    report = with_claims(published("sim"), lambda case: case.level == "core")

    assert [f for f in decide(GateEvidence(report, find_policy("core"), NOW)).findings if f.rule == "G19"] == []


def test_g19_a_native_claim_that_the_reference_fulfils() -> None:
    report = with_kernels()
    kernel = report.cases[-2]
    forged = consistent(replace(report, cases=(*report.cases[:-2], replace(kernel, reason=Reason.NATIVE))))

    found = [f for f in decision_of(forged).findings if f.rule == "G19"]

    assert [f.cases for f in found] == [("ops.2",)]

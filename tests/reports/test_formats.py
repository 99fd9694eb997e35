"""Formats that other programs read: valid by their schemas, bounded, and escaped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest

from conformance.base.errors import JournalError
from conformance.cli.main import main
from conformance.reports import plain_text
from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.report_json import from_json, to_json
from conformance.reports.verdict import Outcome, Reason, Verdict, failed, passed, skipped
from conformance.reports.views import badge, ctrf, endpoint, junit, packed, summary
from tests.reports.gate.world import PLAN, case, honest, with_case
from tests.reports.samples import entry, report_of, sample_report, write_sample

SCHEMA = Path(__file__).parent / "jenkins-junit.xsd"
HOSTILE = "<script>alert(1)</script> ]]> & \" ' | `x` \x1b[31m \x00 \u202e"
ADD = "operators.add[float32-training]"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return sample_report(tmp_path)


def hostile() -> Report:
    """A report with a hostile text wherever one fits."""
    cases = tuple(
        replace(one, id=f"{HOSTILE}{n}", area=HOSTILE, message=HOSTILE) for n, one in enumerate(honest().cases)
    )
    broken = replace(
        cases[0], outcome=Outcome.FAIL, reason=Reason.WRONG, metrics={HOSTILE: HOSTILE, "x": 1}, axes={HOSTILE: HOSTILE}
    )
    accelerator = replace(honest().accelerator, name=HOSTILE, torch=HOSTILE)
    run = replace(honest().run, started=HOSTILE)
    return replace(honest(), run=run, accelerator=accelerator, cases=(broken, *cases[1:]))


def _endless(report: Report) -> Report:
    return replace(report, cases=tuple(replace(one, seconds=1.7e308) for one in report.cases))


def _tiny(report: Report) -> Report:
    return replace(report, cases=tuple(replace(one, seconds=1e-9) for one in report.cases))


# --- JUnit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [lambda report: report, lambda _: hostile(), _tiny, _endless, lambda r: replace(r, cases=())], ids="swtle"
)
def test_junit_is_valid_by_the_schema_of_jenkins(report: Report, change: Any) -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(str(SCHEMA)))
    text = junit.render(change(report))

    schema.assertValid(etree.fromstring(text.encode()))
    assert junitparser.JUnitXml.fromstring(text.encode()).tests == change(report).counts.planned


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<system-out>", "<properties/><system-out>"),
        ('time="0.250000"', 'time="2.5e-05"'),
        ('time="0.250000"', 'time="-1.0"'),
        ("<testsuites ", '<testsuites skipped="1" '),
        ('tests="3"', 'tests="many"'),
        ('<testcase name="accelerator.device.count"', "<testcase"),
    ],
)
def test_the_schema_refuses_what_jenkins_does(report: Report, old: str, new: str) -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(str(SCHEMA)))
    text = junit.render(report)

    assert not schema.validate(etree.fromstring(text.replace(old, new, 1).encode()))


# --- CTRF -----------------------------------------------------------------------------------------------------------

#: What ctrf.io's schema asks of the parts that are written here: name → type, ``!`` for those that are due.
CTRF_TEST = {
    "name!": str,
    "status!": str,
    "duration!": int,
    "suite": list,
    "message": str,
    "rawStatus": str,
    "type": str,
    "extra": dict,
}
CTRF_SUMMARY = {
    f"{name}!": int for name in ("tests", "passed", "failed", "skipped", "pending", "other", "start", "stop")
}


def conforms(value: dict[str, Any], shape: dict[str, type]) -> bool:
    known = {name.rstrip("!"): kind for name, kind in shape.items()}
    due = {name.rstrip("!") for name in shape if name.endswith("!")}
    return due <= value.keys() <= known.keys() and all(type(one) is known[name] for name, one in value.items())


@pytest.mark.parametrize("change", [lambda report: report, lambda _: hostile(), _endless])
def test_ctrf_is_as_its_schema_asks(report: Report, change: Any) -> None:
    document = json.loads(ctrf.render(change(report)))

    results = document["results"]
    assert (document["reportFormat"], document["specVersion"]) == ("CTRF", "0.0.0")
    assert conforms(results["summary"], CTRF_SUMMARY)
    assert [one for one in results["tests"] if not conforms(one, CTRF_TEST) or not one["name"]] == []
    assert {one["status"] for one in results["tests"]} <= {"passed", "failed", "skipped", "other"}
    counted = {
        key: sum(one["status"] == key for one in results["tests"]) for key in ("passed", "failed", "skipped", "other")
    }
    assert counted.items() <= results["summary"].items()
    assert results["summary"]["tests"] == len(results["tests"])


def test_ctrf_has_times_in_milliseconds(report: Report) -> None:
    results = json.loads(ctrf.render(report))["results"]

    assert results["summary"]["start"] == 1_767_323_045_000
    assert results["tests"][0]["duration"] == 250
    assert results["tests"][0]["rawStatus"] == "native"


# --- the summary of a job -------------------------------------------------------------------------------------------


def test_the_summary_begins_with_what_failed(report: Report) -> None:
    text = summary.render(report)

    assert text.startswith("## ❌ Conformance of supa\n")
    assert text.index("### Failures: 2") < text.index("### Planned without a verdict: 2") < text.index("### Matrix")
    assert summary.render(honest()).startswith("## ✅ Conformance of acme\n")


def test_the_summary_of_a_disaster_is_cut_and_says_so() -> None:
    bad = replace(case(PLAN[5]), outcome=Outcome.FAIL, reason=Reason.WRONG, message="é|" * 2000)
    cases = tuple(replace(bad, id=f"operators.case{n}[float32-training]") for n in range(5000))

    text = summary.render(replace(honest(), cases=cases))

    assert 800 * 1024 < len(text.encode()) <= plain_text.SUMMARY_BYTES
    assert "### Failures: 5000" in text
    assert text.endswith(plain_text.CUT)


def test_the_summary_is_escaped() -> None:
    text = summary.render(hostile())

    assert "<script" not in text
    assert [c for c in text if not c.isprintable() and c != "\n"] == []


# --- the badge ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message", "colour"),
    [
        (honest, "training · 9 of 12 cases claimed", "2e7d32"),
        (
            lambda: with_case(honest(), ADD, outcome=Outcome.FAIL, reason=Reason.WRONG),
            "inference · 9 of 12 cases claimed",
            "2e7d32",
        ),
        (
            lambda: with_case(honest(), "accelerator.rng", outcome=Outcome.FAIL, reason=Reason.WRONG),
            "1 failing",
            "c62828",
        ),
        (lambda: replace(honest(), cases=()), "no profile", "616161"),
    ],
)
def test_the_badge_is_the_highest_green_profile(make: Any, message: str, colour: str) -> None:
    value = json.loads(endpoint.render(make()))

    assert value == {"schemaVersion": 1, "label": "acme", "message": message, "color": colour}
    picture = ElementTree.fromstring(badge.render(make()))
    assert picture.get("aria-label") == f"acme: {message}"
    assert f"#{colour}" in badge.render(make())


def test_a_run_of_a_profile_earns_no_higher_badge() -> None:
    only_core = replace(honest(), run=replace(honest().run, profile="core"))

    assert honest().badge == "training"
    assert only_core.badge == "core"
    assert replace(only_core, run=replace(only_core.run, profile="no such")).badge is None


def test_a_partial_run_has_no_badge_and_hostile_names_no_markup() -> None:
    invocation = replace(honest().run.invocation, selection=("--area",))
    partial = replace(honest(), run=replace(honest().run, invocation=invocation))

    assert badge.message(partial) == "partial run"
    assert "<script" not in badge.render(hostile())
    ElementTree.fromstring(badge.render(hostile()))


# --- packed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [honest, hostile, lambda: replace(honest(), cases=())])
def test_what_is_packed_is_unpacked(make: Any) -> None:
    report = make()

    assert from_json(json.loads(packed.render(report))) == report


def test_every_kind_of_ending_is_packed(tmp_path: Path, report: Report) -> None:
    odd = report_of(
        tmp_path / "odd",
        (entry("a.b", dtype="float32", kind="error-inputs"), passed(x=1.0, y="z")),
        (entry("a.c", mode="-"), skipped(Reason.ENVIRONMENT, "0")),
        (entry("a.d"), Verdict(Outcome.FAIL, Reason.WRONG, "", {"x": 0, "y": 0.0})),
        (entry("a.e[f-g]"), failed(Reason.CRASH)),
    )
    cases = tuple(replace(one, in_reference=False, adaptive=True, requires=(), ranks=4) for one in odd.cases[:2])
    odd = replace(odd, cases=(*cases, *odd.cases[2:]))

    for one in (report, odd):
        assert to_json(from_json(json.loads(packed.render(one)))) == to_json(one)


def test_a_passing_case_takes_at_most_200_bytes(tmp_path: Path) -> None:
    axes = {"dtype": "float8_e4m3fn", "mode": "training"}
    cells = [entry(f"operators.nn.functional.adaptive_max_pool3d_with_indices{n}", **axes) for n in range(500)]
    numbers = {"max_abs": 1.2345678901234567e-07, "max_ulp": 1.25, "budget": 2.0, "comparisons": 321}

    text = packed.render(report_of(tmp_path, *[(one, passed(**numbers)) for one in cells]))
    alone = packed.render(report_of(tmp_path / "one", (cells[0], passed(**numbers))))

    assert (len(text) - len(alone)) / 499 <= 200


def test_a_packed_report_is_read_and_judged_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(tmp_path)
    assert main(["report", str(tmp_path), "--format=packed", "-o", str(tmp_path / "p.json")]) == 0

    assert load(tmp_path / "p.json") == load(tmp_path)
    assert main(["gate", str(tmp_path / "p.json"), "--profile=core"]) == 1
    assert "G13 reject" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: v.update(packed=2), "packed in a way"),
        (lambda v: v.pop("rows"), "no lists of shapes and rows"),
        (lambda v: v.update(shapes={}), "no lists of shapes and rows"),
        (lambda v: v["rows"].append(3), "does not fit its shape"),
        (lambda v: v["rows"].append(["x", -1]), "does not fit its shape"),
        (lambda v: v["rows"].append(["x", 10**6]), "does not fit its shape"),
        (lambda v: v["rows"].append([3, 0]), "does not fit its shape"),
        (lambda v: v["rows"].append(["x", 0, 1, 0, 0, [1, 2, 3]]), "does not fit its shape"),
        (lambda v: v["shapes"][0].__setitem__(0, {"id": "x"}), "does not fit its shape"),
        (lambda v: v["shapes"][0].__setitem__(0, 3), "does not fit its shape"),
        (lambda v: v["shapes"][0][0].update(outcome="ok"), "must be one of pass, skip, fail"),
        (lambda v: v["rows"].append(v["rows"][0]), "twice"),
        (lambda v: v.update(cases=[]), "lists cases besides"),
    ],
)
def test_a_broken_packed_report_is_one_sentence(change: Any, sentence: str) -> None:
    value = json.loads(packed.render(honest()))
    change(value)

    with pytest.raises(JournalError, match=sentence) as caught:
        from_json(value)

    assert "\n" not in str(caught.value)

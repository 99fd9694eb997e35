"""report.json: what is written can be read, and what is not a report is refused in one sentence."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import JournalError
from conformance.reports import json_files, reading
from conformance.reports.model import Report
from conformance.reports.report_json import from_json, read_report, to_json
from conformance.reports.verdict import Outcome, passed
from tests.reports.samples import entry, report_of, sample_report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return sample_report(tmp_path)


def test_what_is_written_is_read_back(report: Report) -> None:
    text = to_json(report)

    again = from_json(json.loads(text))

    assert again == report
    assert to_json(again) == text


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    assert to_json(sample_report(tmp_path / "a")) == to_json(sample_report(tmp_path / "b"))


def test_one_case_a_line_and_a_passing_case_is_small(tmp_path: Path) -> None:
    one = entry("operators.nn.functional.conv_transpose3d", dtype="bfloat16", mode="training")

    lines = to_json(report_of(tmp_path, (one, passed()))).splitlines()

    (line,) = [line for line in lines if line.startswith('{"id":')]
    assert len(line) <= 250


def _broken(report: Report, change: Any) -> Any:
    value = json.loads(to_json(report))
    change(value)
    return value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: v.update(extra=1), "has an unknown key 'extra'"),
        (lambda v: v["cases"][0].update(colour="red"), r"cases\[0\] has an unknown key 'colour'"),
        (lambda v: v["cases"][1].pop("id"), r"cases\[1\] lacks the key 'id'"),
        (lambda v: v["cases"][0].update(outcome="ok"), "must be one of pass, skip, fail, not 'ok'"),
        (lambda v: v["cases"][0].update(outcome="fail"), "a verdict cannot be fail with reason native"),
        (lambda v: v["cases"][0].update(seconds="1"), "seconds must be a finite number, not '1'"),
        (lambda v: v["cases"][0].update(seconds=float("inf")), "seconds must be a finite number"),
        (lambda v: v["cases"][0].update(ranks=True), "ranks must be a whole number, not True"),
        (lambda v: v["cases"][0].update(metrics={"x": [1]}), r"metrics\.x must be a number or a string"),
        (lambda v: v["cases"][0].update(metrics={str(i): i for i in range(300)}), "more than 256 keys"),
        (lambda v: v["cases"][0].update(message="x" * 20_001), "longer than 20000 characters"),
        (lambda v: v["cases"][0].update(axes=[]), "axes must be an object"),
        (lambda v: v.update(cases={}), "cases must be a list"),
        (lambda v: v["cases"].append(v["cases"][0]), "lists the case 'accelerator.device.count' twice"),
        (lambda v: v.update(schema=3), "has schema 3; this version reads schemas 1 and 2"),
        (lambda v: v.update(schema=True), "has schema True; this version reads schemas 1 and 2"),
        (lambda v: v.pop("run"), "is not a conformance report"),
        (lambda v: v["run"].update(id=None), r"run\.id must be a string"),
    ],
)
def test_a_broken_report_is_refused_in_one_sentence(report: Report, change: Any, sentence: str) -> None:
    with pytest.raises(JournalError, match=sentence) as caught:
        from_json(_broken(report, change))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '"x"', '{"a": NaN}', '{"a":1,"a":2}', "\x00", "[" * 100_000]
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)

    with pytest.raises(JournalError, match=r"report\.json"):
        read_report(path)


@pytest.mark.parametrize("extra", ['"x": NaN', '"x": -Infinity', '"schema": 1', "'x': 1"])
def test_json_that_readers_disagree_about_is_refused(tmp_path: Path, report: Report, extra: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(to_json(report).replace("{", "{" + extra + ",", 1))

    with pytest.raises(JournalError, match="is not valid JSON"):
        read_report(path)


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_REPORT_BYTES", 10)
    path = tmp_path / "report.json"
    path.write_text("[" + "1," * 10 + "1]")

    with pytest.raises(JournalError, match="is larger than"):
        read_report(path)


def test_too_many_cases_are_refused(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_ITEMS", 3)

    with pytest.raises(JournalError, match=r"has \d+ items; this version reads at most 3\."):
        from_json(json.loads(to_json(report)))


def test_profile_results_count_every_case_though_many_are_alike(report: Report) -> None:
    full = next(one for one in report.profile_results if one.name == "full")

    assert (full.verified, full.claimed) == (report.counts.passed, report.counts.claimed)
    assert full.failed == report.counts.failed
    alike = [replace(case, id=f"{case.id}-{n}") for case in report.cases for n in range(3)]
    thrice = replace(report, cases=tuple(alike))
    # Which cases are in the profile standard depends on their ids, which are new.
    before, after = (
        [one.verified for one in found.profile_results if one.name != "standard"] for found in (report, thrice)
    )
    assert after == [3 * verified for verified in before]


def test_the_totals_are_those_of_the_cases(report: Report) -> None:
    assert (report.totals.passed, report.totals.skipped, report.totals.failed, report.totals.lost) == (4, 4, 2, 2)
    assert report.totals == report.counts


@pytest.mark.parametrize("text", ["[" * 9 + "]" * 9, "[" + ",".join("1" * 9) + "]"])
def test_more_values_than_a_report_has_are_refused_before_they_are_built(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_CONTAINERS", 8)
    monkeypatch.setattr(json_files, "MAX_VALUES", 8)

    with pytest.raises(JournalError, match="holds more values in"):
        json_files.parse_json(text.encode(), "x")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(JournalError, match="is not a file"):
        json_files.read_capped(tmp_path / "pipe")


def test_profile_results_tell_cases_on_ranks_from_their_likes(report: Report) -> None:
    alone = next(case for case in report.cases if case.outcome is Outcome.PASS and case.level == "standard")
    alone = replace(alone, area="checkpoint", axes={}, requires=("checkpoint",))
    ranks = replace(alone, id="checkpoint.other", requires=("checkpoint", "comm"))
    both = replace(report, cases=(alone, ranks), accounting=replace(report.accounting, unaccounted=()))

    verified = {one.name: one.verified for one in both.profile_results}

    assert (verified["inference"], verified["distributed"]) == (1, 2)

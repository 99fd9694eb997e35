"""Foreign JUnit XML: its results become marked rows, and nothing of it is believed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.base.errors import JournalError
from conformance.cli import publish
from conformance.cli.main import main
from conformance.reports import junit_import
from conformance.reports.junit_import import area_of, import_junit
from conformance.reports.loading import load
from conformance.reports.page.columns import PublishedReport
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.views import junit as junit_view
from tests.call_count import calls_of
from tests.reports.gate.world import honest

XML = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="5">
<properties><property name="failure" value="x"/></properties>
<testcase classname="tests.unit.ops.test_adam.TestAdam" name="test_step[fp16]" time="1.5"/>
<testcase classname="tests.unit.ops.test_adam.TestAdam" name="test_step[fp16]" time="nan"/>
<testcase classname="tests.unit.comm.test_dist" name="a"><failure message="bad">E  &lt;script&gt; in /home/ada/x.py</failure></testcase>
<testcase classname="tests.unit.comm.test_dist" name="b"><error message="boom"/></testcase>
<testcase file="tests/unit/moe/test_moe.py" name="c"><skipped message="no device"/><system-out>noise</system-out></testcase>
</testsuite></testsuites>"""  # noqa: E501


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(XML)
    return path


def test_results_become_rows_that_are_marked(junit: Path) -> None:
    report = import_junit(junit, area_of("path"), "acme")

    assert [(case.id, case.area, case.outcome, case.reason, case.seconds) for case in report.cases] == [
        ("imported.ops.TestAdam.test_step[fp16]", "imported.ops", Outcome.PASS, Reason.NATIVE, 1.5),
        ("imported.ops.TestAdam.test_step[fp16]#2", "imported.ops", Outcome.PASS, Reason.NATIVE, 0.0),
        ("imported.comm.test_dist.a", "imported.comm", Outcome.FAIL, Reason.WRONG, 0.0),
        ("imported.comm.test_dist.b", "imported.comm", Outcome.FAIL, Reason.RAISED, 0.0),
        ("imported.moe.c", "imported.moe", Outcome.SKIP, Reason.ENVIRONMENT, 0.0),
    ]
    assert {case.tier for case in report.cases} == {"imported"}
    assert report.cases[2].message == "bad\nE  <script> in …/x.py"
    assert report.cases[4].message == "no device\n"
    assert report.totals == report.counts


def test_areas_come_from_the_suite_or_are_named(junit: Path) -> None:
    assert {case.area for case in import_junit(junit, area_of("suite"), "x").cases} == {"imported.pytest"}
    assert {case.area for case in import_junit(junit, area_of("deepspeed"), "x").cases} == {"imported.deepspeed"}


def test_rows_are_added_to_a_report_once(junit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text(to_json(honest()))
    words = ["import", str(junit), "--into", str(tmp_path / "report.json"), "-o", str(tmp_path / "all.json")]

    assert main(words) == 0

    report = load(tmp_path / "all.json")
    assert len(report.cases) == 17
    assert report.totals == report.counts
    assert "imported pass 2, skip 1, fail 2" in capsys.readouterr().out
    assert main(["import", str(junit), "--into", str(tmp_path / "all.json"), "-o", str(tmp_path / "x.json")]) == 4
    assert "it was imported before" in capsys.readouterr().err


def test_the_page_judges_a_report_without_its_foreign_rows(junit: Path) -> None:
    report = honest()
    both = junit_import.add_rows(report, import_junit(junit, area_of("path"), report.accelerator.name))
    own, judged = (publish._judged(PublishedReport(each)).decision for each in (report, both))

    assert own is not None
    assert judged is not None
    assert judged.findings == own.findings
    assert junit_import.without_rows(both).run == report.run
    assert tuple(junit_import.without_rows(both).cases) == tuple(report.cases)


def test_false_totals_stay_false_without_foreign_rows(junit: Path) -> None:
    report = honest()
    both = junit_import.add_rows(report, import_junit(junit, area_of("path"), report.accelerator.name))
    false = replace(both, totals=replace(both.totals, failed=0))

    assert junit_import.without_rows(false).totals == false.totals


def test_what_this_suite_writes_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(junit_view.render(honest()))

    report = import_junit(tmp_path / "junit.xml", area_of("suite"), "acme")

    assert report.counts.passed == honest().counts.passed


BOMB = '<!DOCTYPE t [<!ENTITY a "xxxxxxxxxx">' + "".join(
    f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (f"{BOMB}]><testsuite>&i;</testsuite>", "has a document type"),
        ('<!DOCTYPE t SYSTEM "file:///etc/passwd"><testsuite/>', "has a document type"),
        ('<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite>&x;</testsuite>', "has a document type"),
        ("<testsuite>&x;</testsuite>", "is not valid XML"),
        ("<testsuite>", "is not valid XML"),
        ("", "is not valid XML"),
        ("<html/>", "is not JUnit XML: it begins with <html>"),
        ("<testsuite>" * 40, "nested too deeply"),
        ('<?xml version="1.0" encoding="no-such"?><testsuite/>', "is not valid XML"),
        ("<testsuite>\x00</testsuite>", "is not valid XML"),
        ('<testsuite a="1" a="2"/>', "is not valid XML"),
    ],
)
def test_hostile_xml_is_one_sentence_and_takes_no_time(tmp_path: Path, data: str, sentence: str) -> None:
    (tmp_path / "x.xml").write_text(data)

    def imported() -> None:
        with pytest.raises(JournalError, match=sentence) as caught:
            import_junit(tmp_path / "x.xml", area_of("path"), "acme")
        assert "\n" not in str(caught.value)

    assert calls_of(imported) < 100_000


def test_there_is_an_end_to_cases_and_to_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit_import, "MAX_CASES", 3)
    path = tmp_path / "x.xml"
    path.write_text(f"<testsuite><testcase><failure>{'x' * 100_000}</failure></testcase></testsuite>")
    assert len(import_junit(path, area_of("path"), "acme").cases[0].message) <= 4_100

    path.write_text(f"<testsuite>{'<testcase/>' * 4}</testsuite>")
    with pytest.raises(JournalError, match="more than 3 cases"):
        import_junit(path, area_of("path"), "acme")


def test_a_name_that_leads_elsewhere_stays_a_name(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    name = "../../etc/passwd\u202e"
    path.write_text(f'<testsuite name="{name}"><testcase classname="{name}" name="{name}"/></testsuite>')

    (case,) = import_junit(path, area_of("suite"), "acme").cases

    assert (case.area, case.id) == ("imported.etc_passwd", "imported.etc_passwd.etc_passwd.../../etc/passwd")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(JournalError, match="is not a file"):
        import_junit(tmp_path / "pipe", area_of("path"), "acme")

"""conformance report: print reports and journals; a missing or broken file is an error of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import junitparser
import pytest

from conformance.cli.main import main
from conformance.reports.json_files import MAX_REPORT_BYTES
from conformance.reports.loading import load
from conformance.reports.report_json import to_json
from conformance.reports.writer import write_report
from tests.reports.samples import write_sample

Captured = pytest.CaptureFixture[str]


def test_a_killed_run_is_printed_from_its_journal(tmp_path: Path, capsys: Captured) -> None:
    journal = write_sample(tmp_path)
    with journal.open("ab") as file:
        file.write(b'{"kind":"end","id":"profil')

    assert main(["report", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert "planned 12, accounted 10: pass 4, skip 4, fail 2" in shown
    assert "journal lines torn by a kill: 1" in shown


def test_a_journal_alone_is_printed(tmp_path: Path, capsys: Captured) -> None:
    journal = write_sample(tmp_path).rename(tmp_path / "elsewhere.jsonl")
    (tmp_path / "manifest.json").unlink()

    assert main(["report", str(journal)]) == 0
    assert "note: The manifest is missing" in capsys.readouterr().out


def test_every_format_is_printed(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)

    shown = {}
    for name in ("text", "markdown", "json", "junit"):
        assert main(["report", str(tmp_path), "--format", name]) == 0
        shown[name] = capsys.readouterr().out

    assert shown["json"] == to_json(load(tmp_path))
    assert shown["markdown"].startswith("# Conformance of supa")
    assert junitparser.JUnitXml.fromstring(shown["junit"].encode()).tests == 12


def test_a_report_is_written_to_a_file(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)

    assert main(["report", str(tmp_path), "--format=json", "-o", str(tmp_path / "out.json")]) == 0

    assert json.loads((tmp_path / "out.json").read_text())["schema"] == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not valid JSON"),
        ('{"run": {', "is not valid JSON"),
        ('{"some": "other tool"}', "is not a conformance report"),
        ('{"schema": 99, "run": {}}', "has schema 99"),
        ('{"schema": 1, "run": {}, "accelerator": {"name": "x"}, "\\u001b[31mevil": 1}', "has an unknown key"),
    ],
)
def test_a_broken_or_foreign_file_is_one_sentence(tmp_path: Path, capsys: Captured, text: str, sentence: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)

    assert main(["report", str(path)]) == 2

    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "\x1b" not in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert path.read_text() == text


def test_a_huge_file_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "report.json"
    with path.open("wb") as file:
        file.truncate(MAX_REPORT_BYTES + 1)

    assert main(["report", str(path)]) == 2
    assert "is larger than 768 MiB" in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_format_are_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 4
    assert "there is no" in capsys.readouterr().err

    assert main(["report", str(tmp_path), "--format", "jnuit"]) == 4
    assert "did you mean 'junit'" in capsys.readouterr().err


def test_an_unwritable_output_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)
    write_report(load(tmp_path), tmp_path)

    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.json" / "x")]) == 4
    assert "cannot write" in capsys.readouterr().err

"""Large reports are read piece by piece: the same values, the same refusals, and messages with lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import JournalError
from conformance.reports import case_table, json_files, planned, streaming
from conformance.reports.case_table import CaseIndex, CaseTable
from conformance.reports.loading import load
from conformance.reports.model import Report, manifest_sha256
from conformance.reports.report_json import from_json, read_hashed, read_report, to_json
from conformance.reports.views import packed

from .gate.honest import PUBLISHED, as_published
from .gate.world import honest, plain
from .test_hostile import FILES

TEXT = to_json(honest())


@pytest.fixture(autouse=True)
def every_report_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "LARGE", 0)
    monkeypatch.setattr(streaming, "_CHUNK", 1_000)  # so that values go on behind the window
    monkeypatch.setattr(streaming, "_BATCH", 5)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "report.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def small(path: Path) -> Report:
    """Return the report as a small file is read."""
    return from_json(json.loads(path.read_bytes()), str(path))


@pytest.mark.parametrize("form", ["canonical", "packed", "indented", "compressed"])
def test_a_large_report_is_the_same_report(form: str, tmp_path: Path) -> None:
    report = honest()
    texts = {"packed": packed.render(report), "indented": json.dumps(plain(report), indent=4)}
    data = texts.get(form, TEXT).encode()
    path = written(tmp_path, gzip.compress(data) if form == "compressed" else data)

    read = read_report(path)

    assert isinstance(read.cases, CaseTable)
    assert tuple(read.cases) == report.cases
    assert to_json(read) == TEXT
    assert read.counts == report.counts
    assert [tuple(group.cases) for group in read.groups] == [tuple(group.cases) for group in report.groups]


def test_a_published_report_is_the_same_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message, metric and reason of an honest run is kept."""
    whole = as_published("supa")
    monkeypatch.setattr(streaming, "_CHUNK", 1 << 16)
    monkeypatch.setattr(streaming, "_BATCH", 2_000)
    monkeypatch.setattr(planned, "_MANY", 10)

    read = load(PUBLISHED / "supa.json.gz")

    assert isinstance(read.cases, CaseTable)
    assert tuple(read.cases) == tuple(whole.cases)
    assert read.cases[-3:] == tuple(whole.cases[-3:])
    assert manifest_sha256(read) == read.run.suite.manifest_sha256
    index = CaseIndex(read.cases)
    assert index[whole.cases[7].id] == whole.cases[7]
    assert "no such case" not in index


def test_the_hash_of_a_large_plan_is_that_of_the_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = manifest_sha256(honest())
    monkeypatch.setattr(planned, "_MANY", 1)

    assert manifest_sha256(honest()) == one


def test_the_bytes_that_are_hashed_are_those_that_are_read(tmp_path: Path) -> None:
    for data in (TEXT.encode(), gzip.compress(TEXT.encode()), TEXT.encode() + b" \n"):
        path = written(tmp_path, data)

        report, sha256 = read_hashed(path)
        path.write_text("{}")  # it is not read again

        assert sha256 == hashlib.sha256(data).hexdigest()
        assert to_json(report()) == TEXT


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("a key as long as a book",)])
def test_what_a_small_file_may_not_be_a_large_one_may_not_be_either(name: str, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"report\.json") as refused:
        read_report(written(tmp_path, FILES[name][0]))

    assert len(str(refused.value)) < 1_500


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("{", "["), "line 1: expected {"),
        (('"outcome":"skip"', '"outcome":"skipped"'), r"cases\[3\].outcome must be one of .* \(line \d+\)"),
        (('"seconds":0.25', '"seconds":"0.25"'), r"cases\[0\].seconds must be a finite number, not '0.25' \(line 9\)"),
        (('"seconds":0.25', '"seconds":0.25,"seconds":0'), "line 9: a key occurs twice in one object"),
        (('"run":', '"schema": 1,\n"run":'), "line 3: a key occurs twice in one object"),
        (('"seconds":0.25}', '"seconds":0.25'), "line 10: Expecting"),
        (("\n]\n}", "\n]\n}]"), "there is more text behind the report"),
        (("\n]\n}", ",\n]\n}"), "a comma stands before the end of a list"),
        (("\n]\n}", "\n],\n}"), "a comma stands before the end of an object"),
        (('"cases": [', '"cases": [], "cases": ['), "a key occurs twice"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_message_names_the_line_and_the_field(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=sentence):
        read_report(written(tmp_path, TEXT.replace(*change, 1)))


def test_limits_of_large_reports_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, TEXT)
    for module, name, value, sentence in (
        (streaming, "MAX_CASES", 4, "has more than 4 cases, the most that this version reads"),
        (streaming, "_LONGEST_CASE", 40, "a value has more than 40 characters"),
        (streaming, "_LONGEST_MEMBER", 40, "a value has more than 40 characters"),
        (streaming, "MAX_REPORT_BYTES", 500, "is larger than 500 bytes; no report"),
        (json_files, "MAX_REPORT_BYTES", 500, "is larger than 500 bytes; no report"),
        (case_table, "MAX_TEXT", 5, "has more than 5 characters of ids, messages and metrics"),
    ):
        with monkeypatch.context() as patch, pytest.raises(JournalError, match=sentence):
            patch.setattr(module, name, value)
            read_report(path)


def test_cases_of_too_many_kinds_are_kept_whole_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_table, "_MOST_KINDS", 2)
    assert to_json(read_report(written(tmp_path, TEXT))) == TEXT

    monkeypatch.setattr(case_table, "_MOST_WHOLE", 1)
    with pytest.raises(JournalError, match="has cases of more than 3 kinds"):
        read_report(tmp_path / "report.json")


def test_rows_before_their_shapes_are_refused(tmp_path: Path) -> None:
    value: dict[str, Any] = json.loads(packed.render(honest()))
    value["shapes"] = value.pop("shapes")  # now behind the rows

    with pytest.raises(JournalError, match="its rows stand before their shapes"):
        read_report(written(tmp_path, json.dumps(value)))


def test_repro_lines_of_a_large_report_are_those_of_this_suite(tmp_path: Path) -> None:
    value = plain(honest())
    value["cases"][0]["repro"] = "pytest --accelerator=$(touch x)"
    path = written(tmp_path, json.dumps(value))

    assert read_report(path).cases[0].repro == small(path).cases[0].repro != ""


def test_a_report_of_sixty_thousand_cases_takes_little_memory(tmp_path: Path) -> None:
    value = plain(honest())
    cases = value.pop("cases")
    rows = ",\n".join(
        f'{{"id":"a.b{n}","area":"a","requires":["a.b{n}"],"seconds":0.{n},"metrics":{{"max_abs":1.{n},"n":{n}}}}}'
        for n in range(60_000)
    )
    path = tmp_path / "report.json"
    path.write_text(f'{json.dumps(value)[:-1]},"cases":[{json.dumps(cases)[1:-1]},{rows}]}}', encoding="utf-8")
    code = (
        "import pathlib, sys; from conformance.reports import json_files\n"
        "json_files.LARGE = 1000\n"
        "from conformance.reports.loading import load\n"
        f"report = load(pathlib.Path({str(path)!r}))\n"
        "(peak,) = [one.split()[1] for one in pathlib.Path('/proc/self/status').open() if one.startswith('VmHWM')]\n"
        "print(len(report.cases), peak)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    number, kilobytes = map(int, done.stdout.split())
    assert number == 60_000 + len(cases)
    # 60,000 records take 120 MB, and the text of the file with its values another 100 MB.
    assert kilobytes <= 75_000

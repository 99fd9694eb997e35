"""``conformance publish``."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.loading import load
from conformance.reports.model import CaseRecord
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.page.publish import write
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Outcome, Reason
from tests.reports.page import many

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "runs"
FILES = (
    "index.html",
    "matrix.json",
    "matrix.md",
    "operators.md",
    "operators.csv",
    *(f"badges/{name}.{kind}" for name in ("npu-upstream", "supa") for kind in ("svg", "json")),
    *(f"cases/{name}.json.gz" for name in ("npu-upstream", "supa")),
)


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text(to_json(many.large(name, 20, 1)), encoding="utf-8")
    return path


def test_several_reports_become_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    supa, npu = written(tmp_path, "supa"), written(tmp_path, "npu")
    out = tmp_path / "page"
    assert main(["publish", str(supa), "--upstream", str(npu), "-o", str(out)]) == 0
    *paths, last = capsys.readouterr().out.splitlines()
    assert paths == [str(out / name) for name in FILES]
    assert last == "2 accelerators, 2 runs: the gate rejects 2"
    text = (out / "index.html").read_text(encoding="utf-8")
    assert '<th scope="col">supa</th>' in text
    assert '<th scope="col">npu <small>(upstream)</small></th>' in text


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    reports = [str(written(tmp_path, "supa")), str(edited(tmp_path, started="2026-01-01T00:00:00+00:00"))]
    for folder, order in (("first", 1), ("second", -1)):
        assert main(["publish", *reports[::order], "-o", str(tmp_path / folder)]) == 0
    files = [path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*.*")]
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_the_line_of_state_names_whose_signature_verifies(tmp_path: Path) -> None:
    supa, npu = written(tmp_path, "supa"), written(tmp_path, "npu")
    key, signers = tmp_path / "key", tmp_path / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    signers.write_text(f"lab@acme.test {key.with_suffix('.pub').read_text()}", encoding="utf-8")
    for report in (supa, npu):
        assert main(["sign", str(report), "--key", str(key)]) == 0
    npu.write_text(npu.read_text(encoding="utf-8") + "\n", encoding="utf-8")  # after it was signed
    assert main(["publish", str(supa), str(npu), "--allowed-signers", str(signers), "-o", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    lines = re.findall(r'<tr class="why">.*?</tr>', page, re.DOTALL)
    assert ["lab@acme.test" in line for line in lines] == [False, True]
    assert ["nobody" in line for line in lines] == [True, False]


def edited(folder: Path, **changes: object) -> Path:
    """Write a report with changes of its head: dates of its run, members of its accelerator."""
    value = json.loads(written(folder, "supa").read_text(encoding="utf-8"))
    for key, change in changes.items():
        value["run" if key in ("started", "finished") else "accelerator"][key] = change
    path = folder / "edited.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"started": "2099-01-01T00:00:00+00:00"},
            "The run is dated 2099-01-01T00:00:00+00:00, which is in the future",
        ),
        ({"finished": "2099-01-01T00:00:00+00:00"}, "which is in the future"),
        ({"started": "9999"}, "is no date with a time zone"),
        ({"name": "cpu (upstream)"}, "is not made of words of ASCII"),
        ({"name": "npu Upstream"}, "has the word 'upstream'"),
        ({"name": "cuda"}, "looks like cuda"),
        ({"name": "sup\u0430"}, "is not made of words of ASCII"),
        ({"name": "supa\u200b"}, "is not made of words of ASCII"),
        ({"name": "supa "}, "is not made of words of ASCII"),
        ({"name": ""}, "The accelerator's name '' is empty"),
    ],
)
def test_a_report_that_would_take_the_place_of_another_is_not_published(
    changes: dict[str, object], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest, forged = written(tmp_path, "npu"), edited(tmp_path, **changes)

    for words in ([str(honest), str(forged)], [str(honest), "--upstream", str(forged)]):
        assert main(["publish", *words, "-o", str(tmp_path / "page")]) == 1

        said = capsys.readouterr()
        assert sentence in said.err
        assert said.err.endswith("Nothing is published.\n")
        assert said.out == ""
        assert not (tmp_path / "page").exists()


def test_a_rejected_report_is_published_with_the_rules_that_reject_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supa = written(tmp_path, "supa")

    assert main(["publish", str(supa), "-o", str(tmp_path / "page")]) == 0

    said = capsys.readouterr().err
    assert re.search(
        r"supa\.json: the gate rejects it \(.*G05.*\); its line on the page says so\. See: conformance gate ", said
    )
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<span class="pill bad">✕ rejected · .*G05', page)
    gate = json.loads((tmp_path / "page" / "matrix.json").read_text(encoding="utf-8"))["accelerators"][0]["gate"]
    assert not gate["accepted"]
    assert "G05" in gate["rejecting"]


def test_the_line_of_state_has_the_run_the_decision_and_what_was_not_checked(tmp_path: Path) -> None:
    report = load(PUBLISHED / "cpu.json.gz")

    assert main(["publish", str(PUBLISHED / "cpu.json.gz"), "-o", str(tmp_path / "page")]) == 0

    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert f"Run {report.run.id} of {report.run.started[:10]}, by nobody: it is not signed." in page
    assert "who made the report (--allowed-signers)" in page
    gate = json.loads((tmp_path / "page" / "matrix.json").read_text(encoding="utf-8"))["accelerators"][0]["gate"]
    assert (gate["run"], gate["waived"]) == (report.run.id, 0)
    assert "whether a device computed the results (conformance challenge, or your own run)" in gate["not_checked"]
    # The published runs are renewed with every plan; between the two, the gate says that they are of another plan.
    assert set(gate["rejecting"]) <= {"G03", "G04", "G06", "G15"}


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_a_signer_of_another_accelerator_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    supa, key = written(tmp_path, "supa"), tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    allowed, signers = tmp_path / "allowed", tmp_path / "signers.toml"
    allowed.write_text(f"lab@acme.test {key.with_suffix('.pub').read_text()}", encoding="utf-8")
    assert main(["sign", str(supa), "--key", str(key)]) == 0
    words = ["publish", str(supa), "--allowed-signers", str(allowed), "-o", str(tmp_path / "page")]

    for name, shown in (("supa", True), ("npu", False)):
        signers.write_text(f'[[signer]]\nprincipal = "lab@acme.test"\naccelerators = ["{name}"]\n', encoding="utf-8")
        assert main([*words, "--signers", str(signers)]) == 0
        assert ("lab@acme.test" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")) is shown
        said = capsys.readouterr().err
        assert ("lab@acme.test may not sign for 'supa'. The page says 'nobody'." in said) is not shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["supa.json", "--signers", "supa.json"], "--signers needs --allowed-signers"),
        ([], "there is no report to publish. Name report folders or report.json files."),
        (["nowhere.json"], "there is no nowhere.json. Name a report folder, a report.json, or a journal.jsonl."),
        (["broken.json"], "broken.json is not"),
        (["supa.json", "-o", "supa.json"], "cannot write supa.json"),
        (["supa.json", "--allowed-signers", "nobody"], "there is no nobody."),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "supa")
    (tmp_path / "broken.json").write_text('{"schema": 1', encoding="utf-8")
    assert main(["publish", *words]) in (2, 4)
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_operators_and_cases_are_files_for_programs(tmp_path: Path) -> None:
    hostile = replace(many.hostile(), accelerator=replace(many.hostile().accelerator, name="=cmd|' /C calc'!A0"))
    old = many.report("supa", (case("add", Outcome.PASS),), "2026-01-01T00:00:00+00:00")
    new = many.report("supa", (case("add", Outcome.FAIL), case("=2+2|", Outcome.PASS)))
    columns = make_columns(map(PublishedReport, (old, new, hostile)))

    write(columns, tmp_path)

    rows = list(csv.reader((tmp_path / "operators.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0][-2:] == ["'=cmd|' /C calc'!A0", "supa"]
    assert ["operators.add", "1", "nodata 0/0/0", "fail 0/1/1"] in rows
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]
    table = (tmp_path / "operators.md").read_text(encoding="utf-8").splitlines()
    assert "| operators.add | 1 | – not run | ✕ 1 |" in table
    assert "<img" not in "".join(table)
    supa = json.loads(gzip.decompress((tmp_path / "cases" / "supa.json.gz").read_bytes()))
    assert (supa["accelerator"], supa["started"][:10]) == ("supa", "2026-03-04")
    assert supa["cases"][0] == {
        "id": "operators.add[int8-training]",
        "verdict": ["fail", "wrong"],
        "before": ["pass", "native"],
        "link": "index.html#case=supa%7Coperators.add%5Bint8-training%5D",
    }


def case(name: str, outcome: Outcome) -> CaseRecord:
    reason = Reason.NATIVE if outcome is Outcome.PASS else Reason.WRONG
    axes = {"dtype": "int8", "mode": "training"}
    return CaseRecord(f"operators.{name}[int8-training]", "operators", axes=axes, outcome=outcome, reason=reason)

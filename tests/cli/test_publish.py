"""``conformance publish``."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.report_json import to_json
from tests.reports.page import many

FILES = (
    "index.html",
    "matrix.json",
    "matrix.md",
    *(f"badges/{name}.{kind}" for name in ("npu-upstream", "supa") for kind in ("svg", "json")),
)


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text(to_json(many.large(name, 20, 1)), encoding="utf-8")
    return path


def test_several_reports_become_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    supa, npu = written(tmp_path, "supa"), written(tmp_path, "npu")
    out = tmp_path / "page"
    assert main(["publish", str(supa), "--upstream", str(npu), "-o", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out / name) for name in FILES]
    text = (out / "index.html").read_text(encoding="utf-8")
    assert '<th scope="col">supa</th>' in text
    assert '<th scope="col">npu (upstream)</th>' in text


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    supa = written(tmp_path, "supa")
    for folder in ("first", "second"):
        assert main(["publish", str(supa), "-o", str(tmp_path / folder)]) == 0
    files = [path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*.*")]
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_a_card_names_whose_signature_verifies(tmp_path: Path) -> None:
    supa, npu = written(tmp_path, "supa"), written(tmp_path, "npu")
    key, signers = tmp_path / "key", tmp_path / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    signers.write_text(f"lab@acme.test {key.with_suffix('.pub').read_text()}", encoding="utf-8")
    for report in (supa, npu):
        assert main(["sign", str(report), "--key", str(key)]) == 0
    npu.write_text(npu.read_text(encoding="utf-8") + "\n", encoding="utf-8")  # after it was signed
    assert main(["publish", str(supa), str(npu), "--allowed-signers", str(signers), "-o", str(tmp_path / "page")]) == 0
    cards = re.findall(r"<article.*?</article>", (tmp_path / "page" / "index.html").read_text("utf-8"), re.DOTALL)
    assert ["lab@acme.test" in card for card in cards] == [False, True]
    assert ["nobody" in card for card in cards] == [True, False]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
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

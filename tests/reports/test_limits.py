"""Commands that hold whole reports in memory name their limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports import loading
from conformance.reports.report_json import to_json
from tests.reports.gate.world import honest


@pytest.mark.parametrize(
    "words",
    [
        ["diff", "a.json", "b.json"],
        ["merge", "a.json", "b.json", "-o", "c.json"],
        ["gate", "a.json", "--baseline=b.json"],
        ["publish", "a.json"],
    ],
    ids=" ".join,
)
def test_too_many_cases_are_one_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "MAX_CASES_TOGETHER", 20)
    monkeypatch.setattr(loading, "MAX_CASES_OF_COLUMN", 10)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(to_json(honest(name)), encoding="utf-8")

    assert main(words) == 4
    assert "that this command reads. Name reports of fewer cases" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]

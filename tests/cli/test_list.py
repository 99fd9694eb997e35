"""conformance list: one name per line, filters, and suggestions for unknown names."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import VOCABULARY
from conformance.cli.main import main
from tests.cli.bundled import USUAL, use_stand_ins


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_without_options_every_case_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == [planned.case.id for planned in USUAL]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--area", "accelerator"], ["accelerator.device.count", "accelerator.rng.state_roundtrip"]),
        (["--area", "accelerator,workloads", "--tier", "workload"], ["workloads.gpt"]),
        (["--tier", "deep"], ["operators.add[float32-deep]"]),
        (["--dtype", "int8"], ["operators.add[int8-inference]", "operators.add[int8-training]"]),
        (["--profile", "core"], ["accelerator.device.count"]),
        (["--profile", "training", "--dtype", "float32"], ["operators.add[float32-training]"]),
        (["--area", "profiling"], []),
    ],
)
def test_options_filter(capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]) -> None:
    assert listed(capsys, *words) == expected


def test_counts_are_by_area_and_in_total(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in listed(capsys, "--count")]

    assert rows == [["accelerator", "2"], ["operators", "4"], ["workloads", "1"], ["total", "7"]]


def test_capabilities_are_listed_with_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "--capabilities")

    assert [line.split()[0] for line in lines] == list(VOCABULARY)
    assert lines[0].endswith(next(iter(VOCABULARY.values())).doc)


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["--area", "operator"], "did you mean 'operators'"),
        (["--tier", "units"], "did you mean 'unit'"),
        (["--dtype", "flaot32"], "'float32'"),
        (["--profile", "trainig"], "did you mean 'training'"),
    ],
)
def test_unknown_names_come_with_suggestions(
    capsys: pytest.CaptureFixture[str], words: list[str], suggestion: str
) -> None:
    assert main(["list", *words]) == 4

    captured = capsys.readouterr()
    assert suggestion in captured.err
    assert captured.out == ""

"""conformance lint: print the findings about a declaration; an error makes the command fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.accelerators.lint import LintFinding, LintSeverity
from conformance.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[LintFinding]:
    """Return a list that replaces the findings of the linter in this test."""
    found: list[LintFinding] = []
    monkeypatch.setattr("conformance.accelerators.lint.lint", lambda subject, file=None: found)
    return found


def test_a_clean_declaration_says_so(findings: list[LintFinding], capsys: Captured) -> None:
    assert main(["lint", "cpu"]) == 0
    assert capsys.readouterr().out == "cpu: no contradiction found\n"


def test_a_warning_is_printed_and_does_not_fail(findings: list[LintFinding], capsys: Captured) -> None:
    findings.append(LintFinding("L11", LintSeverity.WARNING, "is_fp16_supported() is a\nconstant\x1b[0m."))

    assert main(["lint", "cpu"]) == 0
    assert capsys.readouterr().out == (
        "L11 warning: is_fp16_supported() is a constant.\ncpu: no error; 1 warning; see: conformance explain L11\n"
    )


def test_an_error_fails(findings: list[LintFinding], capsys: Captured) -> None:
    findings.append(LintFinding("L01", LintSeverity.ERROR, "float16 is listed, but is_fp16_supported() is false."))

    findings.append(LintFinding("L11", LintSeverity.WARNING, "is_fp16_supported() is a constant."))

    assert main(["lint", "cpu"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "cpu: 1 error, 1 warning; see: conformance explain L01"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lint", "cpuu"], "did you mean 'cpu'"),
        (["lint"], "the following arguments are required: NAME"),
        (["lint", "no.such.module:Class"], "no.such.module"),
    ],
)
def test_bad_input_is_one_sentence(
    findings: list[LintFinding], capsys: Captured, words: list[str], sentence: str
) -> None:
    assert main(words) == 4

    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_missing_capabilities_file_is_one_sentence(
    findings: list[LintFinding], capsys: Captured, tmp_path: Path
) -> None:
    assert main(["lint", "cpu", "--capabilities", str(tmp_path / "none.toml")]) == 4
    assert "there is no file" in capsys.readouterr().err


def test_the_real_linter_finds_no_error_in_the_cpu(capsys: Captured) -> None:
    assert main(["lint", "cpu"]) == 0
    assert " error: " not in capsys.readouterr().out


def test_a_device_type_that_nothing_registers_is_one_error(capsys: Captured) -> None:
    assert main(["lint", "torch:xup"]) == 4
    assert "torch device type 'xup' is not registered." in capsys.readouterr().err

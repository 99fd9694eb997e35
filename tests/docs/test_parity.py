from __future__ import annotations

from tests.docs import parity

PASSED = {"id": "workloads.llama.tp[2]", "outcome": "pass", "metrics": {"weight_error": 2e-7, "loss_error": 1e-7}}


def test_a_row_has_the_errors_of_a_case():
    assert "| `llama.tp[2]` | 2.0e-07 | 1.0e-07 | – |" in parity.page([PASSED])


def test_a_failed_case_is_marked():
    assert "| `llama.tp[2]` **failed** |" in parity.page([{**PASSED, "outcome": "fail"}])


def test_a_skipped_case_says_why():
    skipped = {"id": "workloads.llama.cp[2]", "outcome": "skip", "reason": "environment", "message": "no ring\nmore"}

    assert "* `workloads.llama.cp[2]`: environment, no ring\n" in parity.page([skipped])


def test_a_missing_report_is_one_sentence(tmp_path, capsys):
    assert parity.main(["--report", str(tmp_path / "none.json")]) == 4
    assert "there is no report" in capsys.readouterr().err


def test_a_report_leaves_out_that_a_case_passed(tmp_path):
    """A report has an outcome only for a case that did not pass."""
    report = tmp_path / "report.json"
    report.write_text('{"cases": [{"id": "workloads.llama.tp[2]", "metrics": {"weight_error": 2e-7}}]}')

    assert "| `llama.tp[2]` | 2.0e-07 | – | – |" in parity.page(parity.cases(report))

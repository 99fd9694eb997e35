from __future__ import annotations

from tests.docs import parity
from tests.docs.pages import text, with_part

PASSED = {"id": "workloads.llama.tp[2]", "outcome": "pass", "metrics": {"weight_error": 2e-7, "loss_error": 1e-7}}


def test_a_row_has_the_largest_errors_of_an_engine():
    worse = {**PASSED, "id": "workloads.llama.tp.resume[4-fsdp2@2]", "metrics": {"weight_error": 3e-7}}

    assert "| `llama.tp` | 2 | 3.0e-07 | 1.0e-07 | – |" in parity.part([PASSED, worse])


def test_a_narrow_dtype_has_a_row_of_its_own():
    narrow = {**PASSED, "id": "workloads.deepspeed.zero[1-bfloat16-2]"}

    assert parity.engine("deepspeed.zero[1-float32-2]") == "`deepspeed.zero`"
    assert "| `deepspeed.zero` bfloat16 | 1 |" in parity.part([narrow])


def test_a_failed_case_is_marked():
    assert "| `llama.tp` | 1, **1 failed** |" in parity.part([{**PASSED, "outcome": "fail"}])


def test_skipped_cases_say_why_once():
    found = [
        {"id": f"workloads.llama.cp[{ranks}]", "outcome": "skip", "reason": "environment", "message": "no ring\nmore"}
        for ranks in (2, 4)
    ]

    assert parity.skipped([PASSED, *found]) == "did not run: llama.cp[2], llama.cp[4]: environment, no ring"


def test_a_missing_report_is_one_sentence(tmp_path, capsys):
    assert parity.main(["--report", str(tmp_path / "none.json")]) == 4
    assert "there is no report" in capsys.readouterr().err


def test_a_report_leaves_out_that_a_case_passed(tmp_path):
    """A report has an outcome only for a case that did not pass."""
    report = tmp_path / "report.json"
    report.write_text('{"cases": [{"id": "workloads.llama.tp[2]", "metrics": {"weight_error": 2e-7}}]}')

    assert "| `llama.tp` | 1 | 2.0e-07 | – | – |" in parity.part(parity.cases(report))


def test_the_page_has_a_place_for_the_table():
    assert with_part(text(parity.PAGE), parity.PART, "new") != text(parity.PAGE)

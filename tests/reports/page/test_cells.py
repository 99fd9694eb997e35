"""What a cell says."""

from __future__ import annotations

import pytest

from conformance.reports.page.cells import Ending, make_cell
from conformance.reports.verdict import Outcome, Reason

PASS = (Outcome.PASS, Reason.NATIVE)
WRONG = (Outcome.FAIL, Reason.WRONG)
UNSUPPORTED = (Outcome.SKIP, Reason.UNSUPPORTED)
UNDECLARED = (Outcome.SKIP, Reason.UNDECLARED)
ENVIRONMENT = (Outcome.SKIP, Reason.ENVIRONMENT)


@pytest.mark.parametrize(
    ("endings", "text"),
    [
        ([PASS, PASS], "● 2"),
        ([PASS, UNSUPPORTED, UNDECLARED], "◐ 1/3"),
        ([PASS, None], "◐ 1/2"),
        ([PASS, WRONG, UNSUPPORTED], "✕ 1/3"),
        ([UNSUPPORTED, UNDECLARED], "○"),
        ([UNDECLARED, ENVIRONMENT], "?"),
        ([ENVIRONMENT, None], "–"),
        ([], "–"),
    ],
)
def test_a_cell_says(endings: list[Ending], text: str) -> None:
    assert make_cell(endings).text == text

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
        ([PASS, PASS], "✓ 2"),
        ([PASS, UNSUPPORTED, UNDECLARED], "◐ 1"),
        ([PASS, None], "◐ 1"),
        ([PASS, WRONG, UNSUPPORTED], "✕ 1"),
        ([PASS, WRONG, (Outcome.FAIL, Reason.HANG)], "↯ 2"),
        ([UNSUPPORTED, UNSUPPORTED], "○ no"),
        ([UNSUPPORTED, None], "– not run"),
        ([(Outcome.SKIP, Reason.WAIVED), UNSUPPORTED], "△ waived"),
        ([UNSUPPORTED, UNDECLARED], "? undeclared"),
        ([UNDECLARED, ENVIRONMENT], "? undeclared"),
        ([ENVIRONMENT, None], "– not run"),
        ([], "– not run"),
    ],
)
def test_a_cell_says(endings: list[Ending], text: str) -> None:
    assert make_cell(endings).text == text


@pytest.mark.parametrize(
    ("failed", "core", "style"),
    [(1, False, "x1"), (2, False, "x2"), (9, False, "x2"), (10, False, "x3"), (1, True, "x3")],
)
def test_the_fill_shows_the_share_of_failures(failed: int, core: bool, style: str) -> None:
    assert make_cell([WRONG] * failed + [PASS] * (200 - failed), core=core).style == style

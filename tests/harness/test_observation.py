"""How a body ends is read by type, and its sentence is kept."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.accelerators.interface import MissingMember
from conformance.finding import EnvironmentLacks, Finding, Refused
from conformance.judgement import Seen
from conformance.reports.verdict import Reason
from conformance.running.controller import run_status
from conformance.running.progress import progress_line
from conformance.running.worker import observe


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (None, Seen.RIGHT),
        (AssertionError("2 is not 3"), Seen.WRONG),
        (Finding(Reason.STUB, "no effect"), Seen.FINDING),
        (EnvironmentLacks("one device"), Seen.ENVIRONMENT),
        (OutOfMemoryError("full"), Seen.ENVIRONMENT),
        (Refused("Stream is None"), Seen.REFUSED),
        (NotImplementedError("no"), Seen.NOT_IMPLEMENTED),
        (MissingMember("Stream", "x"), Seen.NOT_IMPLEMENTED),
        (AttributeError("no"), Seen.RAISED),
        (RuntimeError("not implemented"), Seen.RAISED),  # its text says so; only its type counts
        (SystemExit(0), Seen.RAISED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_type_decides(error: BaseException | None, seen: Seen) -> None:
    assert observe(error).seen is seen


def test_an_asserts_own_sentence_is_enough() -> None:
    assert observe(AssertionError("1 + 1 is 2\nassert (1 + 1) == 3\n + where")).message == "1 + 1 is 2"
    assert observe(AssertionError("assert 2 == 3")).message == "assert 2 == 3"


@pytest.mark.parametrize(
    ("pytests", "reports", "expected"),
    [(0, 0, 0), (1, 1, 1), (1, 0, 1), (0, 6, 6), (5, 0, 0), (5, 5, 5), (2, 0, 2), (3, 1, 3), (4, 0, 4)],
)
def test_exit_status(pytests: int, reports: int, expected: int) -> None:
    assert run_status(pytests, reports) == expected


def test_progress_tells_what_is_left() -> None:
    line = progress_line(Counter({"pass": 30, "fail": 20}), total=200, seconds=60)

    assert line == "[ 25%] 50/200 pass 30 skip 0 fail 20 in 1:00, 3:00 left"

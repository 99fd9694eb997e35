"""Progress lines: when they are printed, and when a time is estimated."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.runner import progress
from conformance.runner.progress import Progress, progress_line


def test_no_time_is_estimated_from_the_first_cases() -> None:
    assert progress_line(Counter({"pass": 14}), 15_000, 10.0) == "[  0%] 14/15000 pass 14 skip 0 fail 0 in 0:10"


def test_an_estimate_says_that_it_is_one() -> None:
    line = progress_line(Counter({"pass": 4000, "fail": 1000}), 15_000, 60.0)

    assert line == "[ 33%] 5000/15000 pass 4000 skip 0 fail 1000 in 1:00, about 2:00 left"


def test_the_last_line_has_no_time_left() -> None:
    assert progress_line(Counter({"pass": 3}), 3, 1.0).endswith("in 0:01")


@pytest.mark.parametrize(("verbose", "expected"), [(0, 13), (-1, 3), (-2, 0)])
def test_a_quiet_run_prints_a_line_a_minute(verbose: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    reporter = SimpleNamespace(
        ensure_newline=lambda: None, write_line=lines.append, _tw=SimpleNamespace(width_of_current_line=0)
    )
    config: Any = SimpleNamespace(
        option=SimpleNamespace(verbose=verbose), pluginmanager=SimpleNamespace(getplugin=lambda name: reporter)
    )
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    shown = Progress(config)
    shown.begin(1000, "0" * 64)
    for second in range(1, 126):  # one case a second, for two minutes and some
        now = float(second)
        shown.step("pass")

    assert len(lines) == expected

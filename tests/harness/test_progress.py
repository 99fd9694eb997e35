"""Progress lines: when they are printed, what they name, and when a time is estimated."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.runner import progress
from conformance.runner.progress import Progress, progress_line
from tests.acceptance.running import run


class Clock:
    """Time that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def shown(lines: list[str], verbose: int = 0) -> Progress:
    """A progress that writes into a list. Its thread does not run; a test calls ``_print_if_due`` in its place."""
    reporter = SimpleNamespace(
        ensure_newline=lambda: None,
        write_line=lines.append,
        _tw=SimpleNamespace(width_of_current_line=0, flush=lambda: None),
    )
    config: Any = SimpleNamespace(
        option=SimpleNamespace(verbose=verbose), pluginmanager=SimpleNamespace(getplugin=lambda name: reporter)
    )
    return Progress(config)


def test_a_line_counts_outcomes() -> None:
    assert progress_line(Counter({"pass": 14}), 15_000, 10.0) == "[  0%] 14/15000 pass 14 skip 0 fail 0 in 0:10"


def test_an_estimate_says_that_it_is_one() -> None:
    line = progress_line(Counter({"pass": 4000, "fail": 1000}), 15_000, 60.0, 120.0)

    assert line == "[ 33%] 5000/15000 pass 4000 skip 0 fail 1000 in 1:00, about 2:00 left"


def test_the_time_left_follows_a_pace_that_falls(clock: Clock) -> None:
    lines: list[str] = []
    progress = shown(lines)
    progress.begin({"dear": 300.0, **{str(number): 1.0 for number in range(300)}}, "abc")
    clock.now = 100.0
    progress.step("dear", "pass")
    assert lines[-1].endswith("about 1:40 left")
    # Cheap cases take three times as long as the costs say.
    for number in range(60):
        clock.now += 1.0
        progress.step(str(number), "pass")

    assert lines[-1].endswith("in 2:40, about 4:00 left")


def test_the_last_line_has_no_time_left() -> None:
    assert progress_line(Counter({"pass": 3}), 3, 1.0, 5.0).endswith("in 0:01")


@pytest.mark.parametrize(("verbose", "expected"), [(0, 13), (-1, 5), (-2, 0)])
def test_a_quiet_run_prints_fewer_lines(verbose: int, expected: int, clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines, verbose)
    counter.begin({f"a.{n}": 1.0 for n in range(1000)}, "0" * 64)
    for second in range(1, 126):  # one case a second, for two minutes and some
        clock.now = float(second)
        counter.step(f"a.{second}", "pass")

    assert len(lines) == expected


def test_the_time_left_follows_from_costs_and_not_from_numbers(clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines)
    counter.begin({"a.dear": 90.0, **{f"a.{n}": 0.125 for n in range(80)}}, "0" * 64)
    clock.now = 90.0
    counter.step("a.dear", "pass")

    # One case of 81 has ended, but nine tenths of the work.
    assert lines[-1] == "[  1%] 1/81 pass 1 skip 0 fail 0 in 1:30, about 0:10 left"


def test_no_time_is_estimated_from_the_first_cases(clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines)
    counter.begin({f"a.{n}": 1.0 for n in range(1000)}, "0" * 64)
    clock.now = 20.0
    counter.step("a.0", "pass")

    assert "left" not in lines[-1]


def test_a_case_that_runs_for_long_is_named_until_it_ends(clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines)
    counter.begin({"a.long": 1.0, "a.short": 1.0}, "0" * 64)
    counter.enter("a.long")
    clock.now = 45.0
    counter.enter("a.short")
    counter._print_if_due()
    assert lines[-1].endswith("; a.long runs for 0:45, at most 5:00")

    counter.step("a.long", "pass")
    clock.now = 60.0
    counter._print_if_due()
    assert "a.long" not in lines[-1]


def test_a_case_whose_worker_died_is_not_named(clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines)
    counter.begin({"a.crashed": 1.0}, "0" * 64)
    counter.enter("a.crashed")
    counter.leave("a.crashed")
    clock.now = 60.0
    counter._print_if_due()

    assert "a.crashed" not in lines[-1]


def test_before_the_plan_is_known_a_line_says_what_takes_the_time(clock: Clock) -> None:
    lines: list[str] = []
    counter = shown(lines)
    clock.now = 31.0
    counter._print_if_due()

    assert lines == ["conformance: workers start and collect the cases, for 0:31"]


@pytest.mark.long
def test_a_file_gets_lines_while_one_case_runs(tmp_path: Path) -> None:
    """A run whose only case sleeps prints lines, from the thread, where standard output is a pipe."""
    (tmp_path / "test_slow.py").write_text(
        "import time\n"
        "from conformance.plan.case import case\n\n"
        '@case("utils.slow")\n'
        "def test_slow(device):\n"
        '    """A case takes longer than the time between two lines."""\n'
        "    time.sleep(12)\n"
    )
    ended = run("--accelerator=cpu", "test_slow.py", "-n1", cwd=tmp_path)

    assert ended.status == 0, ended.output
    assert re.search(r"^\[  0%\] 0/1 pass 0 skip 0 fail 0 in 0:1\d$", ended.output, re.MULTILINE), ended.output
    assert re.search(r"^peak memory of a worker: \d+ MiB", ended.output, re.MULTILINE), ended.output

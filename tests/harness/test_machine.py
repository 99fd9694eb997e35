"""Tests of the measured machine: deadlines grow with its load, and times are not judged while it is busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.accelerators.capabilities import MEMORY, Cell
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case
from conformance.process.machine import MOST_SLOWDOWN, Disturbance, Pace, Reading
from conformance.runner.case_runner import FIRST_CALL, deadline_of
from conformance.suites.accelerator import timing

OPERATOR = Case("operators.add[float32-inference]", "operators", requires=(Cell("operators.add", "float32"),))


def pace(loops: list[float], runnable: float = 0.0) -> Pace:
    """Return a pace that is calibrated with loops of a second. A second passes between two questions for the time."""
    times = iter(range(1_000))
    found = iter([1.0, 1.0, 1.0, *loops])
    return Pace(lambda: next(found), lambda: runnable, lambda: float(next(times)))


@pytest.mark.parametrize(("loops", "factor"), [([1.0], 1.0), ([0.5], 1.0), ([3.0], 3.0), ([500.0], MOST_SLOWDOWN)])
def test_a_slow_loop_is_a_slow_machine(loops: list[float], factor: float) -> None:
    assert pace(loops * 3).slowdown() == factor


def test_a_loop_that_was_interrupted_is_no_slow_machine() -> None:
    assert pace([8.0, 1.0, 8.0]).slowdown() == 1.0


def test_threads_that_share_processors_slow_each_other_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    assert pace([1.0], runnable=10).slowdown() == 5.0


def test_a_measurement_is_valid_for_a_second() -> None:
    now = [0.0]
    measured = iter([1.0] * 3 + [2.0] * 3 + [4.0] * 3)
    watch = Pace(lambda: next(measured), lambda: 0.0, lambda: now[0])

    assert (watch.slowdown(), watch.slowdown()) == (2.0, 2.0)
    now[0] = 1.5
    assert watch.slowdown() == 4.0


QUIET = Reading(wall=10.0, used=1.0, waited=1.0, ticks=1_000, stolen=0, runnable=1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"waited": 1.05}, ""),
        ({"waited": 1.5}, "this process waited for a processor 50% of the time and used one 30%"),
        ({"stolen": 30}, "the hypervisor took 30% of the processors' time"),
        ({"runnable": 10}, "10 threads shared 2 processors"),
    ],
)
def test_a_disturbance_is_a_sentence_with_figures(
    change: dict[str, float], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    later = replace(QUIET, wall=11.0, used=1.3, ticks=1_100)
    during = Disturbance(QUIET)

    during.end(replace(later, **change))

    assert during.sentence == sentence


#: Four processes on one processor; the first measures.
CONTENDED = """
import os, signal, time
from conformance.process.machine import disturbance
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(20)
        while True: pass
    children.append(child)
with disturbance() as during:
    until = time.monotonic() + 1
    while time.monotonic() < until: pass
for child in children: os.kill(child, signal.SIGKILL)
print(during.sentence)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_waiting_for_a_shared_processor_is_seen() -> None:
    run = subprocess.run([sys.executable, "-c", CONTENDED], capture_output=True, text=True, check=True, timeout=60)

    assert "this process waited for a processor" in run.stdout


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_a_deadline_grows_with_the_load() -> None:
    plain = Case("accelerator.copy.x", "accelerator", requires=(MEMORY.cell,), deadline=60.0)

    assert (deadline_of(plain, (), 1.0), deadline_of(plain, (), 4.0)) == (60.0, 240.0)


def test_no_machine_gives_a_case_more_than_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Case("accelerator.copy.x", "accelerator", requires=(MEMORY.cell,), deadline=600.0)

    assert {deadline_of(case, (), MOST_SLOWDOWN) for case in (OPERATOR, long)} == {300.0}
    monkeypatch.setenv("CONFORMANCE_CASE_SECONDS", "20")
    assert deadline_of(long, (), 1.0) == 20.0
    monkeypatch.setenv("CONFORMANCE_CASE_SECONDS", "4000")
    assert deadline_of(long, (), 1.0) == 300.0


def test_the_first_call_of_an_operator_has_a_second_chance() -> None:
    """A device that compiles shaders for 76 s in its first call does not hang."""
    assert deadline_of(OPERATOR, (), 1.0) == FIRST_CALL * OPERATOR.deadline > 76
    assert deadline_of(OPERATOR, {"operators.sub"}, 1.0) == FIRST_CALL * OPERATOR.deadline
    assert deadline_of(OPERATOR, {"operators.add"}, 1.0) == OPERATOR.deadline


# --- laws about times -----------------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, *tries: tuple[str, bool]) -> None:
    """Let ``hold`` see these disturbances, one in each try: the sentence, and whether the process was starved."""
    found = iter(tries)

    @contextmanager
    def disturbance() -> Iterator[SimpleNamespace]:
        sentence, starved = next(found)
        yield SimpleNamespace(sentence=sentence, starved=starved)

    monkeypatch.setattr(timing, "disturbance", disturbance)


FREE, BUSY = ("", False), ("10 threads shared 2 processors", False)
STARVED = ("this process waited for a processor 97% of the time", True)


def fails() -> None:
    raise AssertionError("8 x the work takes as long")


def test_times_of_a_starved_process_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *[STARVED] * timing.BUSY_TRIES)

    with pytest.raises(EnvironmentLacks, match=r"97% of the time.*8 x the work takes as long"):
        timing.hold(fails)


@pytest.mark.parametrize("tries", [[FREE] * timing.TRIES, [*[STARVED] * (timing.BUSY_TRIES - 1), BUSY]])
def test_a_law_that_fails_in_every_try_fails(tries: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *tries)

    with pytest.raises(AssertionError, match="8 x the work"):
        timing.hold(fails)


def test_a_busy_machine_gets_more_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *[BUSY] * timing.BUSY_TRIES)
    answers = iter([fails] * (timing.BUSY_TRIES - 1) + [lambda: 7])

    assert timing.hold(lambda: next(answers)()) == 7


@pytest.mark.parametrize(("own", "spins"), [(None, "0"), ("ACTIVE", "30000000000")])
def test_threads_sleep_while_they_wait_unless_the_user_chooses_otherwise(
    own: str | None, spins: str, tmp_path: Path
) -> None:
    (tmp_path / "test_computes.py").write_text("import torch\n\ndef test_computes():\n    torch.ones(9).sum()\n")
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    variables |= {"OMP_DISPLAY_ENV": "VERBOSE"} | ({"OMP_WAIT_POLICY": own} if own else {})
    command = [sys.executable, "-m", "pytest", "--accelerator=cpu", "-n0", "test_computes.py"]

    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)

    # GNU's OpenMP prints this when torch loads it. Without a policy, a thread spins 300,000 times.
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stdout

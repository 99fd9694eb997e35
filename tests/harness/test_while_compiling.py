"""Tests of the timeout during compilation: a compiler has its own limit, and the case's time continues afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conformance.process.watchdog import while_compiling
from conformance.suites.ops import execution, loading
from conformance.suites.ops.planned import results

DEADLINE = 0.3
ADAM = next(case.payload for case in results() if case.payload.kernel.name == "multi_tensor_adam")


class Late(Exception):
    """Exception that stands for the end of the process."""


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_compiling_may_outlast_the_case() -> None:
    with while_compiling():
        time.sleep(2 * DEADLINE)


def test_compiling_for_ever_is_a_hang() -> None:
    with pytest.raises(Late), while_compiling(DEADLINE):
        time.sleep(10)


def test_the_case_has_afterwards_what_it_had_left() -> None:
    with while_compiling():
        pass

    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= DEADLINE
    with pytest.raises(Late):
        time.sleep(10)


def test_where_no_clock_runs_none_is_started() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)

    with while_compiling(0.1):
        time.sleep(0.3)

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class SlowBuilder:
    """Builder that compiles for longer than a case may take."""

    def is_compatible(self) -> bool:
        return True

    def load(self) -> object:
        time.sleep(2 * DEADLINE)
        return SimpleNamespace(multi_tensor_adam=print)


def test_cases_of_kernels_wait_for_a_builder() -> None:
    accelerator = SimpleNamespace(create_op_builder=lambda class_name: SlowBuilder())

    assert execution.load(accelerator, ADAM).function is print


def test_other_cases_wait_for_a_builder() -> None:
    accelerator = SimpleNamespace(create_op_builder=lambda class_name: SlowBuilder())

    assert loading.functions(accelerator, "FusedAdamBuilder").multi_tensor_adam is print

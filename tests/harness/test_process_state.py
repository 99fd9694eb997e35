"""Tests of process state: changes by a case are named and undone, except pytest's own variable."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import pytest

from conformance.process.state import EarlierObjects, ProcessState


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> ProcessState:
    monkeypatch.setenv("KEPT", "ü")
    monkeypatch.setenv("CHANGED", "before")
    return ProcessState.take()


def test_variables_are_put_right_for_children_too(before: ProcessState) -> None:
    os.environ["NEW"], os.environ["CHANGED"] = "1", "after"
    del os.environ["KEPT"]

    leaked = before.give_back()

    program = "import os; print(*map(os.environ.get, ('NEW', 'KEPT', 'CHANGED')))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert leaked == ["environment"]
    assert [os.environ.get(name) for name in ("NEW", "KEPT", "CHANGED")] == [None, "ü", "before"]
    assert child.stdout.split() == ["None", "ü", "before"]


def test_what_pytest_writes_there_is_no_leak(before: ProcessState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")

    assert before.give_back() == []
    os.environ["NEW"] = "1"
    assert before.give_back() == ["environment"]
    assert os.environ["PYTEST_CURRENT_TEST"] == "another"


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_objects_of_earlier_cases_are_not_collected_again_until_they_are_taken_back() -> None:
    earlier, objects = Cycle(), EarlierObjects()
    garbage = weakref.ref(Cycle())
    objects.set_aside()
    known = weakref.ref(earlier)
    del earlier
    own = weakref.ref(Cycle())
    gc.collect()

    assert garbage() is None
    assert own() is None
    assert known() is not None
    objects.take_back()
    gc.collect()
    assert known() is None

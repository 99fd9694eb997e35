"""Programs in new processes: their answers, and what is said of one that does not end."""

from __future__ import annotations

import pytest

from conformance.process import machine
from conformance.suites.accelerator import processes


def test_a_program_answers() -> None:
    assert processes.run_python("tell(one=1)\nanswer('two', lambda: 1 / 0)", "cpu") == {
        "one": 1,
        "two": "ZeroDivisionError: division by zero",
    }


def test_a_program_without_an_end_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "slowdown", lambda: 1.0)

    with pytest.raises(TimeoutError, match=r"^a new Python process .* did not end within 2 s$"):
        processes.run_python("import time; tell(one=1); time.sleep(60)", "cpu", timeout=2.0)


def test_a_busy_machine_extends_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when the machine was free, and the program ends later: no device is at fault for that."""
    factors = iter([1.0])
    monkeypatch.setattr(processes, "slowdown", lambda: next(factors, machine.MOST_SLOWDOWN))

    assert processes.run_python("import time; time.sleep(4); tell(late=1)", "cpu", timeout=2.0) == {"late": 1}

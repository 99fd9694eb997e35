"""What a dead process leaves: its output, and a clause on its end."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from conformance.process import deaths
from conformance.process.deaths import evidence, how_it_ended, load_seconds, output_kept, read_text, timed_out


def test_output_of_python_and_of_native_code_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with output_kept(tmp_path / "output"):
        print("from python")
        os.write(2, b"from native code\n")
    print("later")

    assert read_text(tmp_path / "output") == "from python\nfrom native code\n"
    assert capfd.readouterr().out == "later\n"


def test_a_handler_made_inside_writes_on_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with output_kept(tmp_path / "output"):
        handler = logging.StreamHandler()

    handler.emit(logging.makeLogRecord({"msg": "the driver is warm"}))

    assert "the driver is warm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stacks", "status", "words"),
    [
        ("", -signal.SIGKILL, "killed by SIGKILL"),
        ("Fatal Python error: Aborted\n", -signal.SIGABRT, "killed by SIGABRT (Aborted)"),
        ("Fatal Python error: Aborted\n", None, "the process died: Aborted"),
        ("", 3, "exit status 3"),
        ("", None, "the process ended"),
        ("", -63, "signal 63"),
    ],
)
def test_how_it_ended(stacks: str, status: int | None, words: str) -> None:
    assert words in how_it_ended(stacks, status)


def test_evidence_has_the_last_lines() -> None:
    text = evidence("", "\n".join(f"line {n}" for n in range(100)))

    assert "line 99" in text
    assert "line 50" not in text
    assert evidence("", "") == ""


def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_LOAD_SECONDS", "120")
    assert load_seconds() == 120
    assert "no end within 120 s (CONFORMANCE_LOAD_SECONDS" in timed_out()


def test_a_busy_machine_extends_the_usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "slowdown", lambda: 2.0)
    monkeypatch.setenv("CONFORMANCE_LOAD_SECONDS", "soon")
    assert load_seconds() == 90
    monkeypatch.setattr(deaths, "slowdown", lambda: 8.0)
    assert load_seconds() == 135
    assert "no end within 45 s of a free machine" in timed_out()
    monkeypatch.setenv("CONFORMANCE_LOAD_SECONDS", "120")
    assert load_seconds() == 120

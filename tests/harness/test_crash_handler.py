"""The controller's handling of dead workers, without workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.reports.journal import JournalWriter
from conformance.reports.verdict import passed
from conformance.runner.crashes import CrashHandler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    JournalWriter(tmp_path / "journal.jsonl").close()
    return tmp_path


def handler(folder: Path, planned: dict[str, str]) -> CrashHandler:
    accelerator = SimpleNamespace(text="acme")
    report = SimpleNamespace(
        path=folder, journal=folder / "journal.jsonl", setup_error=lambda run: folder / f"{run}.error"
    )
    context: Any = SimpleNamespace(folder=report, accelerator=accelerator, run="run")
    config: Any = SimpleNamespace()
    return CrashHandler(config, context, planned)


def node(name: str = "gw0") -> Any:
    return SimpleNamespace(gateway=SimpleNamespace(id=name))


def test_the_run_stops_when_four_workers_die_without_a_verdict(folder: Path) -> None:
    crashes = handler(folder, {"test.py::test": "area.case"})
    for _ in range(3):
        crashes.pytest_testnodedown(node(), "crashed")

    with pytest.raises(pytest.exit.Exception, match="4 workers died before any case ends") as stopped:
        crashes.pytest_testnodedown(node(), "crashed")

    assert stopped.value.returncode == 6
    assert "names the cases without a verdict" in str(stopped.value)
    # pytest prints this line; a class of a module would be printed with the module's name.
    assert stopped.exconly().startswith("Stopped: the run stops: 4 workers died")


def test_a_run_without_a_plan_stops_as_a_wrong_setup_does(folder: Path) -> None:
    crashes = handler(folder, {})
    for _ in range(3):
        crashes.pytest_testnodedown(node(), "crashed")

    with pytest.raises(pytest.UsageError, match=r"(?s)4 workers died before any case ends.*No case has run"):
        crashes.pytest_testnodedown(node(), "crashed")


def test_a_worker_that_hangs_while_it_loads_stops_the_run_at_once(folder: Path) -> None:
    (folder / "stacks").mkdir()
    (folder / "stacks/gw0.txt").write_text('Current thread 0x01:\n  File "acme.py", line 3 in load\n')
    (folder / "stacks/gw0.output.txt").write_text("the vendor says hello\n")

    with pytest.raises(pytest.UsageError, match="did not load its accelerator") as stopped:
        handler(folder, {}).pytest_testnodedown(node(), "crashed")

    assert "the vendor says hello" in str(stopped.value)
    assert "line 3 in load" in str(stopped.value)


def test_an_interrupted_worker_is_no_death(folder: Path) -> None:
    crashes = handler(folder, {})

    for _ in range(8):
        crashes.pytest_testnodedown(node(), "keyboard-interrupt")


def test_a_verdict_between_deaths_starts_the_count_again(folder: Path) -> None:
    crashes = handler(folder, {})

    for number in range(3):
        for _ in range(3):
            crashes.pytest_testnodedown(node(), "crashed")
        journal = JournalWriter(folder / "journal.jsonl")
        journal.start(f"area.case[{number}]", None)
        journal.end(f"area.case[{number}]", passed(), 0.1)
        journal.close()

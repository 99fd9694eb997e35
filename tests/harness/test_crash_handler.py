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


def handler(folder: Path, session: Any) -> CrashHandler:
    plugins = SimpleNamespace(getplugin=lambda name: session)
    context: Any = SimpleNamespace(folder=SimpleNamespace(path=folder, journal=folder / "journal.jsonl"))
    config: Any = SimpleNamespace(pluginmanager=plugins)
    return CrashHandler(config, context, {})


def test_the_run_stops_when_four_workers_die_without_a_verdict(folder: Path) -> None:
    session, node = SimpleNamespace(shouldstop=False), SimpleNamespace(gateway=SimpleNamespace(id="gw0"))
    crashes = handler(folder, session)

    stopped = []
    for _ in range(4):
        crashes.pytest_testnodedown(node, "crashed")
        stopped.append(bool(session.shouldstop))

    assert stopped == [False, False, False, True]


def test_a_verdict_between_deaths_starts_the_count_again(folder: Path) -> None:
    session, node = SimpleNamespace(shouldstop=False), SimpleNamespace(gateway=SimpleNamespace(id="gw0"))
    crashes = handler(folder, session)

    for number in range(3):
        for _ in range(3):
            crashes.pytest_testnodedown(node, "crashed")
        journal = JournalWriter(folder / "journal.jsonl")
        journal.start(f"area.case[{number}]", None)
        journal.end(f"area.case[{number}]", passed(), 0.1)
        journal.close()

    assert not session.shouldstop

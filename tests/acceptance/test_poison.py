"""A case that leaves the device unusable is named, and the innocents after it still get their own verdicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.layers import longer

from .running import HERE, Run, run

INTERRUPTED = 2


def poison_run(folder: Path, *arguments: str) -> Run:
    for name in ("poisonable.py", "poison_cases.py"):
        shutil.copy(HERE / name, folder / name)
    spec = "--accelerator=poisonable:Poisonable"
    return run(spec, "poison_cases.py", *arguments, cwd=folder, name="poisonable-Poisonable", PYTHONPATH=str(folder))


@pytest.mark.parametrize("workers", longer(["-n1", "-n2"], "-n2"))
def test_the_culprit_is_named_and_the_innocents_run_elsewhere(tmp_path: Path, workers: str) -> None:
    finished = poison_run(tmp_path, workers)

    verdicts = finished.verdicts
    assert verdicts.pop("poison.culprit") == ("fail", "poisoned"), finished.output
    assert set(verdicts.values()) == {("pass", "native")}, finished.output
    assert len(verdicts) == 17
    assert "illegal memory access" in finished.messages["poison.culprit"]


def test_an_allowed_end_of_the_context_is_no_poisoning_and_the_process_is_replaced(tmp_path: Path) -> None:
    finished = poison_run(tmp_path, "-n1", "--case=poison.allowed", "--case=poison.after*")

    assert set(finished.verdicts.values()) == {("pass", "native")}, finished.output
    assert len(finished.verdicts) == 9


def test_without_workers_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    stopped = poison_run(tmp_path, "-n0")
    resumed = poison_run(tmp_path, "-n0", "--resume")

    assert stopped.status == INTERRUPTED, stopped.output
    assert "poison.culprit left the device unusable" in stopped.output
    assert resumed.status == 1, resumed.output
    assert resumed.verdicts["poison.culprit"] == ("fail", "poisoned")
    assert resumed.verdicts["poison.after[7]"] == ("pass", "native")

"""The order of cases: that of the files in one process, and the basics first, then what takes long, for workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .running import HERE, run

IN_THE_FILE = ["order.short", "order.long[1]", "order.long[2]", "order.core"]
OF_WORKERS = ["order.core", "order.long[1]", "order.long[2]", "order.short"]


@pytest.mark.parametrize(("workers", "expected"), [("-n0", IN_THE_FILE), ("-n1", OF_WORKERS)])
def test_order(workers: str, expected: list[str], tmp_path: Path) -> None:
    shutil.copy(HERE / "ordered_cases.py", tmp_path / "test_cases.py")

    finished = run("--accelerator=cpu", "test_cases.py", workers, "-q", cwd=tmp_path)

    assert finished.status == 0, finished.output
    lines = (finished.folder / "journal.jsonl").read_text().splitlines()
    begun = [line["id"] for line in map(json.loads, lines) if line["kind"] == "start"]
    assert begun == expected
    assert [case.id for case in finished.report.cases] == IN_THE_FILE

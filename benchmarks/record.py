"""The data file of measured rows, from which docs/detection.md has a table: each row with its date and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.table import Row

MEASURED = Path(__file__).parent / "measured.json"


def record(rows: Sequence[Row], path: Path = MEASURED) -> None:
    """Write rows to the data file. A row replaces the row of the same metric; other rows keep their date and commit."""
    stamp = {"date": datetime.now(timezone.utc).date().isoformat(), "commit": commit(), "machine": machine()}
    known = {row["metric"]: row for row in read(path)}
    known.update({row.metric: {**asdict(row), **stamp} for row in rows})
    path.write_text(json.dumps({"rows": list(known.values())}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path = MEASURED) -> list[Mapping[str, str]]:
    """Return the recorded rows, in the order in which they were first recorded."""
    rows: list[Mapping[str, str]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def commit() -> str:
    """Return the short hash of the checked-out commit, with a ``+`` if files differ from it."""
    asked = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    done = subprocess.run(asked, cwd=MEASURED.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def machine() -> str:
    """Return one line about the machine and the packages that matter."""
    versions = " · ".join(f"{name} {metadata.version(name)}" for name in ("torch", "pytest", "pytest-xdist"))
    return f"{platform.machine()} · {_cores()} cores · Python {platform.python_version()} · {versions}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

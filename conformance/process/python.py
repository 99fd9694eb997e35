"""Command lines of child interpreters that import the same modules as this process, and how those of pytest died.

``python -c`` and ``python -m`` look into the current folder first. In a checkout a child would take the folder
``conformance/`` for the installed package, which has more in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_SAME_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"
_PYTEST = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
#: Exit statuses of pytest after which there is a report: nothing failed, a case failed, nothing was verified.
_COMPLETED = (0, 1, 5)


def child_python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs ``program`` with this module path; its ``sys.argv[1:]`` are ``arguments``."""
    return [sys.executable, "-c", _SAME_PATH + program, json.dumps(module_path()), *arguments]


def child_pytest(*arguments: str, before: str = "") -> list[str]:
    """Return the command that runs pytest with this module path, after the statements ``before``."""
    return child_python(before + _PYTEST, *arguments)


def last_written(folder: Path) -> int:
    """Return when a report in this folder was last written, in nanoseconds, or 0 if there is none."""
    return max((file.stat().st_mtime_ns for file in folder.rglob("*.json*")), default=0)


def death_of_pytest(
    status: int, output: str, report: Path, *, run: str, accelerator: str, written_before: int = 0
) -> str:
    """Return why a child's run of pytest was not completed, in its own words; empty if it was.

    A run is completed with a report in the folder ``report`` that is newer than ``written_before``. The status alone
    does not say so: Python ends with 1, as after a failed case, when it dies of an exception. ``run`` names the run.
    """
    if status in _COMPLETED and last_written(report) > written_before:
        return ""
    lines = [line for line in output.splitlines() if line.strip()]
    error_at = next((place for place, line in enumerate(lines) if line.startswith("ERROR: ")), None)
    if error_at is not None:
        return "\n".join(lines[error_at:]).removeprefix("ERROR: ")
    last = lines[-1] if lines else "it printed nothing"
    return f"{run} ended with status {status}: {last}\n  to find the cause: conformance doctor {accelerator}"


def module_path() -> list[str]:
    """Return ``sys.path`` with folders last that hold another package of our name, so that they hide nothing."""
    return sorted(sys.path, key=_hides_us)


def _hides_us(folder: str) -> bool:
    namesake = Path(folder or ".") / _PACKAGE.name
    return namesake.is_dir() and namesake.resolve() != _PACKAGE

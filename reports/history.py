"""Earlier runs of a report folder: a new run keeps the results of the run before it in ``earlier/``."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from conformance.base.errors import UsageError
from conformance.reports.journal import read_lines
from conformance.reports.views import all_views

EARLIER: Final = "earlier"
#: Files that a run goes on writing to or replaces at once, so they are copied. All other results are moved.
_COPIED: Final = ("journal.jsonl", "manifest.json")
_SIGNATURE: Final = "report.json.sig"
#: A journal has this in the line of every verdict.
_VERDICT: Final = b'"kind":"end"'
#: Lines of a journal in which its header stands: the first one, unless a kill has cut it.
_HEADER_LINES: Final = 10


def keep_run(folder: Path) -> Path | None:
    """Keep the results in a report folder under ``earlier/``, and return their new folder. None if there are none.

    Views and signature are moved, because they do not belong to the next run. A kill at any point loses nothing: the
    next call finds the same name again, and continues.
    """
    journal = _bytes_of(folder / "journal.jsonl")
    if _VERDICT not in journal and not (folder / "report.json").exists():
        return None
    kept = folder / EARLIER / _name(journal or _bytes_of(folder / "report.json"))
    try:
        kept.mkdir(parents=True, exist_ok=True)
        for name in _COPIED:
            if (folder / name).exists():
                shutil.copy2(folder / name, kept / name)
        for name in (*(view.file for view in all_views() if view.file), _SIGNATURE):
            if (folder / name).exists():
                (folder / name).replace(kept / name)
    except OSError as error:
        raise UsageError(
            f"the run before cannot be kept in {kept}: {error.strerror}. Make room, or choose another folder with "
            "--conformance-report DIR."
        ) from None
    return kept


def earlier_runs(folder: Path) -> list[Path]:
    """Return the folders of the earlier runs that a report folder keeps, the oldest first."""
    try:
        found = [path for path in (folder / EARLIER).iterdir() if path.is_dir()]
    except OSError:
        return []
    # Names begin with the time of the start. A run without one is taken for the oldest.
    return sorted(found, key=lambda path: (path.name[0].isdigit(), path.name))


def runs_until(runs: Sequence[Path], day: date) -> list[Path]:
    """Return the runs of a day or before. The names of their folders begin with the time of the start, in UTC."""
    return [path for path in runs if path.name[:1].isdigit() and path.name[:8] <= day.strftime("%Y%m%d")]


def _name(data: bytes) -> str:
    """Return the folder's name, from the start and the id of the run, or from a hash of its data."""
    header = read_lines(data.split(b"\n", _HEADER_LINES)[:_HEADER_LINES]).run or {}
    # To the millisecond; a start without one has digits of its zone there, which are 0.
    started, run = _only(header.get("started"), "0-9T", 18), _only(header.get("run"), "0-9a-f", 12)
    return f"{started}-{run}" if started and run else f"undated-{hashlib.sha256(data).hexdigest()[:12]}"


def _only(value: Any, characters: str, length: int) -> str:
    """Return the allowed characters of a value. The file may come from another machine, and this becomes a path."""
    return re.sub(f"[^{characters}]", "", str(value or ""))[:length]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

"""Atomic writing of views: a file is either the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from conformance.base.errors import UsageError
from conformance.reports.model import Report
from conformance.reports.views import all_views


def write_report(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write the views that a report folder has; return their paths."""
    texts = {folder / view.file: view.render(report, 0) for view in all_views() if view.file}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    for path, text in texts.items():
        write_text(path, text)
    return tuple(texts)


def write_text(path: Path, text: str) -> None:
    """Write atomically: the file appears complete, or stays as it was."""
    # UTF-8 whatever the locale: reports are read on other systems.
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write atomically, as ``write_text`` does."""
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe, such as /dev/stdout, must not be replaced by a file.
            path.write_bytes(data)
        else:
            _replace(path, data)
    except OSError as error:
        raise _unwritable(path, error) from None


def _replace(path: Path, data: bytes) -> None:
    """Write a temporary file beside ``path`` and rename it, which is atomic. Clean up after an error."""
    # In the same folder, because a rename works only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror}. Choose another folder, or make this one writable.")

"""Files in the user's cache folder. A missing, broken or unwritable one costs time and nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder for this project."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accelerator-conformance"


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, so that one process works and the others wait for it."""
    try:
        import fcntl  # not on every platform that imports this module
    except ImportError:
        yield
        return
    with lock.open("w") as handle:
        # The lock ends with its process, so a killed one leaves no stale lock behind.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keep(path: Path, content: str | bytes) -> None:
    """Write a temporary file, then rename it.

    Several processes may write at once; a reader sees either the whole file or none.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).replace(path)
    except OSError:
        return  # the next process computes it again

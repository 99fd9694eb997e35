"""Folder of compiled code that belongs to one run.

Compilers keep their code from process to process. A run that took code from an earlier run would pass with a compiler
that is broken now. So each run has a new folder, which all of its processes share.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: Variables that name a folder for compiled code, and the folder's name. Child processes inherit them.
FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
#: Variables that let inductor take code from a server.
_SERVERS = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
)
_PREFIX = "conformance-compiled-"
#: Seconds for which a folder without a lock may be that of a run that begins just now.
_LOCKED_WITHIN = 60.0


def new_compiler_cache() -> Callable[[], None]:
    """Let this process and its children store compiled code in a new folder.

    Return the function that deletes the folder and restores the environment.
    """
    _delete_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = _locked(folder)
    new = {**{name: str(folder / part) for name, part in FOLDERS.items()}, **dict.fromkeys(_SERVERS, "0")}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)

    return undo


@contextlib.contextmanager
def own_compiler_cache() -> Iterator[None]:
    """Store compiled code in a new folder while the context lasts."""
    undo = new_compiler_cache()
    try:
        yield
    finally:
        undo()


def _delete_abandoned(temporary: Path) -> None:
    """Delete the folders of runs that were killed: nobody holds their lock any more."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or deleted meanwhile
            if time.time() - folder.stat().st_mtime < _LOCKED_WITHIN:
                continue
            descriptor = _locked(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Lock a folder until this process ends; return the descriptor, or None if it is locked or has no locks."""
    try:
        import fcntl  # not on every platform that imports this module
    except ImportError:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor

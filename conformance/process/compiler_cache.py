"""Folder of compiled code that belongs to one run.

Compilers keep their code from process to process. A run that took code from an earlier run would pass with a compiler
that is broken now. So each run has a new folder, which all of its processes share.

Only the libraries by which inductor finds out the processor's instructions are kept from run to run. Nothing calls
them: inductor loads them in a process of its own. They cost 15 seconds, and their names depend on the versions of torch
and the compiler, and on its options.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.base.cache import cache_folder, keep
from conformance.process.python import child_python

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
#: What the names of the functions in these libraries have in common.
_PROBED = b"_chk_kernel"
#: Seconds for which a folder without a lock may be that of a run that begins just now.
_LOCKED_WITHIN = 60.0


def new_compiler_cache() -> Callable[[], None]:
    """Let this process and its children store compiled code in a new folder.

    Return the function that deletes the folder and restores the environment.
    """
    _delete_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = _locked(folder)
    _copy_probes(_kept(), folder / FOLDERS["TORCHINDUCTOR_CACHE_DIR"])
    new = {**{name: str(folder / part) for name, part in FOLDERS.items()}, **dict.fromkeys(_SERVERS, "0")}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _copy_probes(folder / FOLDERS["TORCHINDUCTOR_CACHE_DIR"], _kept(), checked=True)
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


def _kept() -> Path:
    """Return the folder of the libraries that are kept from run to run."""
    return cache_folder() / "instructions"


def _copy_probes(source: Path, target: Path, *, checked: bool = False) -> None:
    """Copy the libraries of inductor's questions about instructions to another folder, with their sources.

    ``checked`` copies none unless all load: a compiler that is killed may leave half a library.
    """
    with contextlib.suppress(OSError):  # then inductor compiles them
        codes = [code for code in source.glob("*/*.cpp") if _PROBED in code.read_bytes()]
        libraries = [code.with_suffix(".so") for code in codes]
        new = [library for library in libraries if library.exists() and not _in(target, library).exists()]
        if not new or (checked and not _load(new)):
            return
        for file in (*new, *codes):
            keep(_in(target, file), file.read_bytes())


def _in(folder: Path, file: Path) -> Path:
    """Return where inductor looks for a file of another folder in this one."""
    return folder / file.parent.name / file.name


def _load(libraries: list[Path]) -> bool:
    """Return whether all libraries load in a process with torch."""
    program = "import ctypes, sys, torch\nfor library in sys.argv[1:]: ctypes.CDLL(library)"
    command = child_python(program, *map(str, libraries))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - our own command


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

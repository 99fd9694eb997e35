"""Hash of the suite's installed files: the same files give the same hash, wherever they are installed."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Rooms of this project by their import names, the kinds of files that decide, and folders without such files.
_ROOMS: Final = ("conformance", "conformance.accelerators", "conformance.kernels", "conformance.reports")
_SOURCES: Final = (".py", ".toml", ".cpp", ".h", ".cu")
_LEFT_OUT: Final = frozenset({"__pycache__", "published", "build"})


@functools.cache
def suite_files_sha256() -> str:
    """Return a hash over the installed files of the suite, by their names in the package."""
    digest = hashlib.sha256()
    for name, path in sorted(_files()):
        digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the files with their names in the package. An editable install has the rooms in other places."""
    found: dict[str, Path] = {}
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in _sources(folder):
                found["/".join((*room.split("."), *path.relative_to(folder).parts))] = path
    yield from found.items()


def _sources(folder: str) -> Iterator[Path]:
    """Yield the files that decide in a folder and those below. Folders that are left out are not opened."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(parent, name) for name in files if name.endswith(_SOURCES))

"""Hash of the suite's installed files: the same files give the same hash, wherever they are installed."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Rooms of this project by their import names, the kinds of files that decide, and folders without such files.
_ROOMS: Final = ("conformance", "conformance.accelerators", "conformance.kernels", "conformance.reports")
_SOURCES: Final = frozenset({".py", ".toml", ".cpp", ".h", ".cu"})
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
            for path in Path(folder).rglob("*"):
                inside = path.relative_to(folder)
                if path.suffix in _SOURCES and not _LEFT_OUT & set(inside.parts):
                    found["/".join((*room.split("."), *inside.parts))] = path
    yield from found.items()

"""Lists of operators of torch series, for the plans of series that are not installed.

``conformance manifest --release`` writes the list of the installed torch, and the manifests of all series from the
lists. After a change of ``catalogue._operator``, ``database.py`` or ``unlisted.py``, make every list again with a torch
of its series.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from .catalogue import Operator, dump_operators, load_operators, operators

#: Not in the wheel: only developers release manifests.
FOLDER = Path(__file__).parent / "series"


def known_series() -> list[str]:
    """Return every series with a list, such as ``2.13``, from the oldest to the newest."""
    names = (re.fullmatch(r"torch(\d+)\.(\d+)\.json\.gz", path.name) for path in FOLDER.glob("*.json.gz"))
    return [f"{major}.{minor}" for major, minor in sorted((int(name[1]), int(name[2])) for name in names if name)]


def read_list(series: str) -> tuple[Operator, ...]:
    """Return the operators of a series."""
    return load_operators(gzip.decompress(_path(series).read_bytes()).decode())


def write_list(series: str) -> None:
    """Write the operators of the installed torch as the list of its series. The same list gives the same bytes."""
    FOLDER.mkdir(exist_ok=True)
    _path(series).write_bytes(gzip.compress(dump_operators(operators()).encode(), 9, mtime=0))


def _path(series: str) -> Path:
    """Return the file with the operators of a series of torch, such as '2.13'."""
    return FOLDER / f"torch{series}.json.gz"

"""The limits of this area, from limits.toml."""

from __future__ import annotations

import functools
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


@functools.cache
def _table():
    return tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))


def largest_file(tensors):
    """How large a file with these tensors may be, in bytes."""
    return _table()["file"] + sum(tensor.nbytes + _table()["tensor"] for tensor in tensors)

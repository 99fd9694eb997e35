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


def limit(name):
    """One number."""
    return _table()[name]

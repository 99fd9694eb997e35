"""The limits in limits.toml, as values."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


@functools.cache
def limits() -> SimpleNamespace:
    tables = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))
    return SimpleNamespace(**{name: SimpleNamespace(**table) for name, table in tables.items()})

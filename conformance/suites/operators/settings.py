"""The limits in limits.toml, as values."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def limits() -> SimpleNamespace:
    tables = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))
    return SimpleNamespace(**{name: SimpleNamespace(**table) for name, table in tables.items()})

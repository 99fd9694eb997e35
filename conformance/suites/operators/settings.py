"""Limits of the operator suite, read from limits.toml."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from conformance.numerics.beside import table_beside


@functools.cache
def limits() -> SimpleNamespace:
    """Return the tables of limits.toml as attributes."""
    tables = table_beside(__file__, "limits.toml")
    return SimpleNamespace(**{name: SimpleNamespace(**table) for name, table in tables.items()})

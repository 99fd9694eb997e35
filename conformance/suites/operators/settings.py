"""Limits of the operator suite, read from limits.toml."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from conformance.numerics.budgets import load_table


@functools.cache
def limits() -> SimpleNamespace:
    """Return the tables of limits.toml as attributes."""
    tables = load_table(__file__, "limits.toml")
    return SimpleNamespace(**{name: SimpleNamespace(**table) for name, table in tables.items()})

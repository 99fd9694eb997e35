"""Limits of the compression area, read from limits.toml."""

from __future__ import annotations

from conformance.numerics.budgets import load_table


def limit(name):
    """Return the limit of that name."""
    return load_table(__file__, "limits.toml")[name]

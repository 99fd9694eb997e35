"""Limits of the compression area, read from limits.toml."""

from __future__ import annotations

from conformance.numerics.beside import table_beside


def limit(name):
    """Return the limit of that name."""
    return table_beside(__file__, "limits.toml")[name]

"""The limits of this area, from limits.toml."""

from __future__ import annotations

from conformance.numerics.beside import table_beside


def limit(name):
    """One number."""
    return table_beside(__file__, "limits.toml")[name]

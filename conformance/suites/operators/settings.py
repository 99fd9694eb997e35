"""The limits in limits.toml, as values."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from conformance.numerics.beside import table_beside


@functools.cache
def limits() -> SimpleNamespace:
    tables = table_beside(__file__, "limits.toml")
    return SimpleNamespace(**{name: SimpleNamespace(**table) for name, table in tables.items()})

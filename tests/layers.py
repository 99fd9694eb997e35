"""Layers of tests: parameters of which few run with every change, and the others with the marker ``long``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def longer(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the values as parameters: those in ``kept``, or else the first, for each run; the others are ``long``."""
    every = list(values)
    usual = kept or tuple(every[:1])
    missing = [value for value in usual if value not in every]
    assert not missing, f"{missing} are no parameters"
    return [value if value in usual else _long(value) for value in every]


def _long(value: Any) -> Any:
    """Return a parameter, or several in a tuple, with the marker."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)

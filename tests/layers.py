"""Layers of tests: parameters of which few run with every change, and the others with the marker ``long``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def longer(values: Iterable[Any], *kept: Any, step: int | None = None, repeating: Sequence[Any] = ()) -> list[Any]:
    """Return the values as parameters of which most are ``long``.

    The others are those in ``kept``; or with a ``step``, every value so far from the one before; or the first.
    Those in ``repeating`` take turns: they only repeat with other values what another parameter is for.
    """
    every = list(values)
    missing = [value for value in (*kept, *repeating) if value not in every]
    assert not missing, f"{missing} are no parameters"
    usual = {every.index(value) for value in kept} or set(range(0, len(every), step or len(every)))
    return [value if place in usual else _long(value, value in repeating) for place, value in enumerate(every)]


def _long(value: Any, repeats: bool) -> Any:
    """Return a parameter, or several in a tuple, with its markers."""
    marks = (pytest.mark.long, pytest.mark.repeats) if repeats else (pytest.mark.long,)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)

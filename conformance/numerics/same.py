"""Comparison of results that have to be equal numbers."""

from __future__ import annotations

from typing import Any

import torch

#: Wrong numbers that a message shows.
_SHOWN = 8


def same_numbers(check: Any, what: str, actual: torch.Tensor, wanted: torch.Tensor, *, signed: bool = False) -> None:
    """Check two results on the host for equal numbers. NaN equals NaN, and, unless ``signed``, -0 equals 0."""
    check.equal(actual.isnan(), wanted.isnan(), f"where {what} is NaN")
    same = actual == wanted
    if signed:
        same &= actual.signbit() == wanted.signbit()
    same |= wanted.isnan()
    found, due = (numbers[~same].tolist() for numbers in (actual, wanted))
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    check.that(bool(same.all()), f"{what} gives {found[:_SHOWN]}, not {due[:_SHOWN]}{more}")

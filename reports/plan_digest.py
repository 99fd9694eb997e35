"""Hashes that name a plan and a declaration, made by those who write them and made again by those who doubt them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence


def plan_sha256(suite: str, rows: Iterable[tuple[str, str, str, Sequence[str]]]) -> str:
    """A hash of what a suite of this version plans, from id, tier, level and needs of each case, in any order."""
    listed = sorted([id, tier, level, *requires] for id, tier, level, requires in rows)
    return hashlib.sha256(json.dumps([suite, listed]).encode()).hexdigest()


def declaration_sha256(rows: Iterable[Sequence[str | None]]) -> str:
    """A hash of written claims: cell, state, detail or None, and reason of each, sorted by cell."""
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()

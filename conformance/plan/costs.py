"""Measured seconds of cases, by which a run orders its cases and estimates the time left.

The file has the seconds of every case that took a noticeable time on a CPU, and the median of each area. Another device
has other times, but the dear cases are mostly the same. ``python -m tests.standard.costs REPORT`` renews the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "costs.json"
#: Seconds from which a case is dear. Dear cases run first: at the end, one worker would wait for another.
DEAR: Final = 0.2
#: Seconds of a case of an area that the file does not know.
_UNKNOWN: Final = 0.01


@dataclass(frozen=True)
class Costs:
    """Seconds of the dear cases by id, and the median seconds of all other cases by area."""

    cases: Mapping[str, float]
    areas: Mapping[str, float]

    def seconds(self, case_id: str) -> float:
        """Return the expected seconds of a case: its own, or else its area's median."""
        known = self.cases.get(case_id)
        return self.areas.get(case_id.partition(".")[0], _UNKNOWN) if known is None else known

    def rank(self, case_id: str) -> float:
        """Return a key that sorts the dear cases first, the dearest at the beginning; all others are equal."""
        seconds = self.seconds(case_id)
        return -seconds if seconds >= DEAR else 0.0


@cache
def measured() -> Costs:
    """Return the costs in the file."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    return Costs(raw["cases"], raw["areas"])

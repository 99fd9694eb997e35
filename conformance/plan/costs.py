"""Measured seconds of cases, by which a run orders its cases and estimates the time left.

The file has the seconds of every case that took a noticeable time on a CPU, and the median of each area. Another device
has other times, but the dear cases are mostly the same. ``python -m tests.standard.costs REPORT`` renews the file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from conformance.accelerators.capabilities import COMPILE, INVARIANT_COMPILE

FILE: Final = Path(__file__).parent / "costs.json"
#: Seconds from which a case is dear. Dear cases run first: at the end, one worker would wait for another.
DEAR: Final = 0.2
#: Seconds of a case of an area that the file does not know.
_UNKNOWN: Final = 0.01
#: Capabilities of the compiler.
_COMPILERS: Final = frozenset((COMPILE.name, INVARIANT_COMPILE.name))


@dataclass(frozen=True)
class Costs:
    """Seconds of the dear cases by id, and the median seconds of all other cases by area."""

    cases: Mapping[str, float]
    areas: Mapping[str, float]

    def seconds(self, case_id: str) -> float:
        """Return the expected seconds of a case: its own, or else its area's median."""
        known = self.cases.get(case_id)
        return self.areas.get(case_id.partition(".")[0], _UNKNOWN) if known is None else known

    def ranks(self, case_ids: Iterable[str], compiled: Collection[str] = ()) -> dict[str, tuple[int, float]]:
        """Return keys that sort the dear cases first, the dearest at the beginning; all others are equal.

        Of the dear cases that are ``compiled``, the dearest starts at once and the others follow the rest of the dear
        ones: a process that compiles waits while another one prepares the compiler's headers.
        """
        seconds = {id: self.seconds(id) for id in case_ids}
        dear = {id: -taken for id, taken in seconds.items() if taken >= DEAR}
        first = min((id for id in dear if id in compiled), key=dear.__getitem__, default=None)
        late = {id for id in dear if id in compiled and id != first}
        return {
            id: (0 if id == first else 2 if id in late else 1 if id in dear else 3, dear.get(id, 0.0)) for id in seconds
        }


def is_compiled(requires: Iterable[str]) -> bool:
    """Return whether a case that requires these cells runs the declared compiler."""
    return not _COMPILERS.isdisjoint(cell.partition("[")[0] for cell in requires)


@cache
def measured() -> Costs:
    """Return the costs in the file."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    return Costs(raw["cases"], raw["areas"])

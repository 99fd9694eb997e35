"""Limit of the time of a case, whatever the machine is and however often the case is tried."""

from __future__ import annotations

import os
from typing import Final

#: Seconds that a case may take in all, also on a busy machine, with the first call of an operator and a second try.
MOST_CASE_SECONDS: Final = 300.0
#: Seconds in which an accelerator may compile what it loads, also on a busy machine. A compiler that is killed keeps
#: nothing, so a run after it would take as long.
MOST_BUILD_SECONDS: Final = 900.0
#: Environment variable that lowers the limit: hangs of a young backend are then told sooner.
VARIABLE: Final = "CONFORMANCE_CASE_SECONDS"


def case_seconds(wanted: float = MOST_CASE_SECONDS) -> float:
    """Return how long a case may take that wants this many seconds."""
    return min(wanted, _most())


def _most() -> float:
    try:
        return min(MOST_CASE_SECONDS, max(1.0, float(os.environ.get(VARIABLE, ""))))
    except ValueError:
        return MOST_CASE_SECONDS

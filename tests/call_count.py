"""Count the calls that code makes: a measure of work that is the same on a slow machine and on a busy one."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any


def calls_of(function: Callable[[], Any]) -> int:
    """Call ``function`` and count the calls of functions, in Python and in C, that it makes."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(entry.callcount for entry in profile.getstats())

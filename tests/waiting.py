"""Waiting for what another process does: until it has happened, or with a sentence that says what did not."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds. A busy machine may be slow, so this is far beyond what anything here takes; the end of a wait is no measure.
PATIENCE = 240.0


def wait_for(what: str, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return as soon as the condition holds; raise AssertionError that says what did not happen."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"did not happen within {seconds:g} s: {what}"
        time.sleep(0.02)

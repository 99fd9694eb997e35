"""A pytest plugin that takes the time of each test, set-up to tear-down: ``-p each_case``. It changes nothing.

The times, in seconds and in the order of the tests, go to the file that EACH_CASE_FILE names, as JSON; with xdist from
the workers, so it is used without. ``at`` is when the first test began, in seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_seconds: list[float] = []
_at: list[float] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    _at.append(time.time())
    before = time.perf_counter()
    try:
        return (yield)
    finally:
        _seconds.append(time.perf_counter() - before)


def pytest_unconfigure() -> None:
    if _at:
        seen = {"seconds": _seconds, "at": _at[0]}
        Path(os.environ["EACH_CASE_FILE"]).write_text(json.dumps(seen), encoding="utf-8")

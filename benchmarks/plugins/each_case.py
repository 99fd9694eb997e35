"""Pytest plugin that times each test from set-up to tear-down: ``-p each_case``. It changes nothing.

The environment variable EACH_CASE_FILE names the JSON file for the times, in seconds and in the order of the tests.
``at`` is the begin of the first test, in seconds since the epoch. Not for runs with xdist, whose workers would each
write the file.
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

"""Pytest plugin that records times and changes nothing: ``-p stopwatch``, with this folder on PYTHONPATH.

It works with every suite. The environment variable STOPWATCH_FILE names the JSON file of the result; times are in
seconds since the epoch. STOPWATCH_COUNT may name a function, as ``module:name`` or ``module:Class.name``, whose calls
are counted.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


class Stopwatch:
    """Recorder of the times and outcomes of a run."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.outcomes: Counter[str] = Counter()
        self._counted: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.times["collected"] = time.time()
        self.outcomes["selected"] = len(session.items)

    def pytest_runtest_logstart(self) -> None:
        self.times.setdefault("first_start", time.time())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        decides = report.when == "call" or not report.passed
        if decides and report.nodeid not in self._counted:
            self._counted.add(report.nodeid)
            self.outcomes[report.outcome] += 1
            self.times["last_end"] = time.time()
            self.times.setdefault("first_end", self.times["last_end"])

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        seen = {"times": self.times, "outcomes": self.outcomes, "torch": "torch" in sys.modules}
        Path(os.environ["STOPWATCH_FILE"]).write_text(json.dumps(seen), encoding="utf-8")

    def count_calls(self, name: str) -> None:
        """Wrap the named function so that its calls are counted."""
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
        counted = getattr(owner, attribute)

        @functools.wraps(counted)
        def counting(*arguments: Any, **more: Any) -> Any:
            self.outcomes["counted"] += 1
            return counted(*arguments, **more)

        setattr(owner, attribute, counting)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    watch = Stopwatch()
    config.pluginmanager.register(watch, "stopwatch-itself")
    if name := os.environ.get("STOPWATCH_COUNT"):
        watch.count_calls(name)

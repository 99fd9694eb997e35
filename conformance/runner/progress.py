"""Progress of a run: one line every ten seconds, with an estimate of the time left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counter of outcomes that prints a line every ten seconds."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts: Counter[str] = Counter()
        self._total, self._began, self._printed = 0, time.monotonic(), 0.0

    def begin(self, total: int, manifest: str) -> None:
        """Print how many cases will run."""
        self._total, self._began, self._printed = total, time.monotonic(), time.monotonic()
        self._write(f"conformance: {total} cases to run, manifest {manifest[:12]}")

    def step(self, outcome: str) -> None:
        """Count one outcome, and print a line if the last one is ten seconds old."""
        self._counts[outcome] += 1
        now = time.monotonic()
        if now - self._printed < _SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        self._write(progress_line(self._counts, self._total, now - self._began))

    def end(self) -> None:
        """Print the last line."""
        self._write(progress_line(self._counts, self._total, time.monotonic() - self._began))

    def _write(self, line: str) -> None:
        """Write a line through pytest's terminal reporter, unless the run is quiet."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self._config.option.verbose >= 0:
            reporter.ensure_newline()
            reporter.write_line(line)


def progress_line(counts: Counter[str], total: int, seconds: float) -> str:
    """Return a line such as ``[ 35%] 4210/12000 pass 4000 skip 200 fail 10 in 1:20, 2:30 left``."""
    done = sum(counts.values())
    left = "" if not done or done >= total else f", {_clock(seconds / done * (total - done))} left"
    outcomes = " ".join(f"{name} {counts[name]}" for name in ("pass", "skip", "fail"))
    return f"[{100 * done // max(total, 1):3d}%] {done}/{total} {outcomes} in {_clock(seconds)}{left}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

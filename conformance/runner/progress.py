"""Progress of a run: one line every ten seconds, and with ``-q`` one a minute, with an estimate of the time left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_QUIET_LINES = 60.0
#: Share of the cases that must have ended before a time is estimated. The first cases compile and load, and a run with
#: 178 minutes left by its first line was over in two.
_SHARE_FOR_AN_ESTIMATE = 0.1


class Progress:
    """Counter of outcomes that prints a line now and then: with ``-q`` once a minute, with ``-qq`` never."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        quiet = config.option.verbose < 0
        self._silent = config.option.verbose < -1
        self._interval = _SECONDS_BETWEEN_QUIET_LINES if quiet else _SECONDS_BETWEEN_LINES
        self._counts: Counter[str] = Counter()
        self._total, self._began, self._printed = 0, time.monotonic(), 0.0

    def begin(self, total: int, manifest: str) -> None:
        """Print how many cases will run."""
        self._total, self._began, self._printed = total, time.monotonic(), time.monotonic()
        self._write(f"conformance: {total} cases to run, manifest {manifest[:12]}")

    def step(self, outcome: str) -> None:
        """Count one outcome, and print a line if the last one is old enough."""
        self._counts[outcome] += 1
        now = time.monotonic()
        if now - self._printed < self._interval:
            return
        self._printed = now
        self._write(progress_line(self._counts, self._total, now - self._began))

    def end(self) -> None:
        """Print the last line."""
        self._write(progress_line(self._counts, self._total, time.monotonic() - self._began))

    def _write(self, line: str) -> None:
        """Write a line through pytest's terminal reporter."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or self._silent:
            return
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:
            reporter.line("")  # the letters of plain tests stand here, of which ensure_newline does not know with xdist
        reporter.write_line(line)


def progress_line(counts: Counter[str], total: int, seconds: float) -> str:
    """Return a line such as ``[ 35%] 4210/12000 pass 4000 skip 200 fail 10 in 1:20, about 2:30 left``."""
    done = sum(counts.values())
    known = _SHARE_FOR_AN_ESTIMATE * total <= done < total
    left = f", about {_clock(seconds / done * (total - done))} left" if known and done else ""
    outcomes = " ".join(f"{name} {counts[name]}" for name in ("pass", "skip", "fail"))
    return f"[{100 * done // max(total, 1):3d}%] {done}/{total} {outcomes} in {_clock(seconds)}{left}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

"""Progress of a run: a line every ten seconds, with ``-q`` every thirty, also while no case ends.

A thread prints the lines, because a case may take minutes. A case that runs longer than half a minute is named.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from conformance.process.time_limits import case_seconds

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_QUIET_LINES = 30.0
#: Share of the work that must have ended before a time is estimated. The first cases compile and load.
_SHARE_FOR_AN_ESTIMATE = 0.1
#: Seconds whose pace is compared with that of the whole run: dear cases come first, and cheap ones may be slower than
#: the measured costs say.
_RECENT = 60.0
#: Seconds after which a line names a case that has not ended.
_LONG = 30.0


class Progress:
    """Counter of outcomes that prints a line now and then: with ``-q`` less often, with ``-qq`` never."""

    def __init__(self, config: pytest.Config, said: Callable[[], str] = str) -> None:
        """``said`` returns the last line that a worker has printed while it loads, or an empty string."""
        self._config, self._said = config, said
        quiet = config.option.verbose < 0
        self._silent = config.option.verbose < -1
        self._interval = _SECONDS_BETWEEN_QUIET_LINES if quiet else _SECONDS_BETWEEN_LINES
        self._counts: Counter[str] = Counter()
        self._costs: Mapping[str, float] = {}
        self._done, self._total = 0.0, 0.0
        #: Moments of the last lines, with the work that had ended.
        self._paces: deque[tuple[float, float]] = deque()
        self._planned: int | None = None
        self._running: dict[str, float] = {}
        self._began = self._printed = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="conformance-progress", daemon=True)

    def start(self) -> None:
        """Begin to print lines. Until the plan is known, they say that workers start."""
        self._began = self._printed = time.monotonic()
        if not self._silent:
            self._ticker.start()

    def begin(self, costs: Mapping[str, float], manifest: str) -> None:
        """Print how many cases will run. ``costs`` has the expected seconds of each."""
        with self._lock:
            self._costs, self._total, self._planned = costs, sum(costs.values()), len(costs)
            self._began = self._printed = time.monotonic()
            self._write(f"conformance: {len(costs)} cases to run, manifest {manifest[:12]}")

    def enter(self, case_id: str) -> None:
        """Note that a case has begun."""
        with self._lock:
            self._running[case_id] = time.monotonic()

    def leave(self, case_id: str) -> None:
        """Note that a case does not run any more, as its worker has died."""
        with self._lock:
            self._running.pop(case_id, None)

    @property
    def failed(self) -> int:
        """Return how many cases have failed."""
        return self._counts["fail"] + self._counts["failed"]

    def step(self, case_id: str, outcome: str) -> None:
        """Count the outcome of a case, and print a line if the last one is old enough."""
        with self._lock:
            self._counts[outcome] += 1
            self._done += self._costs.get(case_id, 0.0)
            self._running.pop(case_id, None)
            self._print_if_due()

    def end(self) -> None:
        """Print the last line, if there was a plan, and print no more."""
        self._ended.set()
        with self._lock:
            if self._planned is not None:
                self._write(self._line(time.monotonic()))

    def _tick(self) -> None:
        """Print lines while no case ends."""
        while not self._ended.wait(1.0):
            with self._lock:
                self._print_if_due()

    def _print_if_due(self) -> None:
        now = time.monotonic()
        if now - self._printed >= self._interval and not self._ended.is_set():
            self._printed = now
            self._write(self._line(now))

    def _line(self, now: float) -> str:
        """Return the line for this moment."""
        passed = now - self._began
        if self._planned is None:
            said = "; ".join(filter(None, (_clock(passed), self._said())))
            return f"conformance: workers start and collect the cases, for {said}"
        left = self._left(now)
        long = {id: now - since for id, since in self._running.items() if now - since >= _LONG}
        return progress_line(self._counts, self._planned, passed, left) + _named(long)

    def _left(self, now: float) -> float | None:
        """Return the seconds that are left at the pace of the run, or of its last minute if that is slower."""
        self._paces.append((now, self._done))
        while len(self._paces) > 2 and now - self._paces[1][0] >= _RECENT:
            self._paces.popleft()
        if not self._done or not _SHARE_FOR_AN_ESTIMATE * self._total <= self._done < self._total:
            return None
        paces = [self._done / (now - self._began)]
        since, before = self._paces[0]
        if now - since >= _RECENT and self._done > before:
            paces.append((self._done - before) / (now - since))
        return (self._total - self._done) / min(paces)

    def _write(self, line: str) -> None:
        """Write a line through pytest's terminal reporter."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or self._silent:
            return
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:
            reporter.line("")  # the letters of plain tests stand here, of which ensure_newline does not know with xdist
        reporter.write_line(line)
        reporter._tw.flush()  # a pipe keeps lines back


def progress_line(counts: Counter[str], total: int, seconds: float, left: float | None = None) -> str:
    """Return a line such as ``[ 35%] 4210/12000 pass 4000 skip 200 fail 10 in 1:20, about 2:30 left``."""
    done = sum(counts.values())
    rest = "" if left is None or done >= total else f", about {_clock(left)} left"
    outcomes = " ".join(f"{name} {counts[name]}" for name in ("pass", "skip", "fail"))
    return f"[{100 * done // max(total, 1):3d}%] {done}/{total} {outcomes} in {_clock(seconds)}{rest}"


def _named(long: Mapping[str, float]) -> str:
    """Return the end of a line that names cases which run for long, the longest first."""
    ordered: Iterable[tuple[str, float]] = sorted(long.items(), key=lambda row: -row[1])
    most = _clock(case_seconds())
    return "".join(f"; {id} runs for {_clock(seconds)}, at most {most}" for id, seconds in ordered)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

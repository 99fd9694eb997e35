"""The machine on which cases run: how busy it is now, and how long a process had to wait for a processor.

A deadline and a law about times assume a machine that is free. These functions measure the one that is there, at the
moment when it matters. Deadlines are multiplied by ``slowdown()``. A case about times asks a ``Disturbance`` whether
its measurement can be trusted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Largest factor by which a busy machine extends a deadline.
MOST_SLOWDOWN = 8.0
#: Seconds for which a measured slowdown is valid.
_VALID = 1.0
#: Iterations of the calibrated loop, about 2 ms on a processor of 2020.
_LOOP = 20_000
#: Times that the loop is run at most, of which the shortest counts: one interruption makes a loop of 2 ms take eight
#: times as long. A loop that takes less than this factor of the shortest one ever was not interrupted.
_LOOPS, _UNDISTURBED = 3, 1.5
#: Shares above which times cannot be trusted: of the wall time that this process' threads waited for a processor, and
#: of the processors' time that the hypervisor gave to other machines.
_MOST_WAITING, _MOST_STOLEN = 0.1, 0.05
#: Shares above which a process hardly runs at all: of the time in which its threads could run, that they waited, and
#: of the processors' time that the hypervisor gave to other machines.
_STARVED_WAITING, _STARVED_STOLEN = 0.95, 0.5
#: Runnable threads per processor above which times cannot be trusted. Below it, each mostly has a processor.
_MOST_RUNNABLE = 1.5


def runnable() -> float:
    """Return how many threads of the machine are running or wait for a processor; 0 where the system does not tell."""
    # proc(5): averages of 1, 5 and 15 minutes, then runnable/existing threads. The instant alone may be an exception.
    words = _read("/proc/loadavg").split()
    if len(words) < 4:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(float(words[0]), float(words[3].partition("/")[0]))


def _machine_processors() -> int:
    return os.cpu_count() or 1


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


# --- slowdown -------------------------------------------------------------------------------------------------------


def loop_seconds() -> float:
    """Return the wall time of a fixed loop."""
    started = time.perf_counter()
    total = 0
    for number in range(_LOOP):
        total += number
    return time.perf_counter() - started


class Pace:
    """Measures the machine's slowdown, at most once a second. ``loop`` is calibrated when the object is made."""

    def __init__(
        self,
        loop: Callable[[], float] = loop_seconds,
        count_runnable: Callable[[], float] = runnable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._runnable, self._clock = loop, count_runnable, clock
        self._best = min(loop() for _ in range(_LOOPS))
        self._measured, self._until = 1.0, float("-inf")

    def slowdown(self) -> float:
        """Return by how much work takes longer now than on a free machine, from 1 to ``MOST_SLOWDOWN``."""
        if self._clock() >= self._until:
            taken = self._shortest()
            self._best = min(self._best, taken)
            found = max(taken / self._best, self._runnable() / _machine_processors())
            self._measured, self._until = min(MOST_SLOWDOWN, max(1.0, found)), self._clock() + _VALID
        return self._measured

    def _shortest(self) -> float:
        taken = self._loop()
        for _ in range(_LOOPS - 1):
            if taken <= _UNDISTURBED * self._best:
                break
            taken = min(taken, self._loop())
        return taken


_pace: Pace | None = None


def slowdown() -> float:
    """Return by how much work takes longer now than on a free machine, from 1 to ``MOST_SLOWDOWN``."""
    global _pace
    _pace = _pace or Pace()
    return _pace.slowdown()


# --- disturbance ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Counters at one moment: wall time and waiting time of this process, and ticks of all processors, in seconds."""

    wall: float
    used: float
    waited: float
    ticks: float
    stolen: float
    runnable: float

    @classmethod
    def take(cls) -> Reading:
        """Return the present counters; 0 for those that the system does not have."""
        ticks = [int(word) for word in _read("/proc/stat").partition("\n")[0].split()[1:]]
        stolen = ticks[7] if len(ticks) > 7 else 0  # proc(5): the eighth number is the time stolen by a hypervisor
        return cls(time.perf_counter(), time.process_time(), _waited(), sum(ticks[:8]), stolen, runnable())


def _waited() -> float:
    """Return the seconds that the threads of this process have waited for a processor."""
    # Documentation/scheduler/sched-stats: time on a processor, time in a run queue (both in ns), number of time slices.
    words = [_read(f"{task}/schedstat").split() for task in _tasks()]
    return sum(int(word[1]) for word in words if len(word) > 1) / 1e9


def _tasks() -> list[str]:
    try:
        return [str(path) for path in Path("/proc/self/task").iterdir()]
    except OSError:
        return []


class Disturbance:
    """Interval in which times are taken. Afterwards ``sentence`` says what disturbed it, or is empty.

    ``starved`` tells whether this process hardly got a processor, so that the times mean nothing.
    """

    def __init__(self, before: Reading) -> None:
        self._before = before
        self.sentence, self.starved = "", False

    def end(self, after: Reading) -> None:
        """Compare the counters at the end of the interval with those at its beginning."""
        before = self._before
        wall, ticks = max(after.wall - before.wall, 1e-9), max(after.ticks - before.ticks, 1)
        waited, stolen = (after.waited - before.waited) / wall, (after.stolen - before.stolen) / ticks
        busy = max(before.runnable, after.runnable) / _machine_processors()
        reasons = []
        if waited > _MOST_WAITING:
            used = (after.used - before.used) / wall
            reasons.append(f"this process waited for a processor {waited:.0%} of the time and used one {used:.0%}")
        if stolen > _MOST_STOLEN:
            reasons.append(f"the hypervisor took {stolen:.0%} of the processors' time")
        if busy > _MOST_RUNNABLE:
            reasons.append(f"{busy * _machine_processors():.0f} threads shared {_machine_processors()} processors")
        self.sentence = "; ".join(reasons)
        could_run = waited + (after.used - before.used) / wall
        self.starved = waited > _STARVED_WAITING * could_run > 0 or stolen > _STARVED_STOLEN


@contextmanager
def disturbance() -> Iterator[Disturbance]:
    """Measure the machine while times are taken."""
    found = Disturbance(Reading.take())
    try:
        yield found
    finally:
        found.end(Reading.take())

"""Runs mutants in forked copies of this process, a few at a time, each case under a watchdog.

The parent loads everything and touches no device: what a mutant breaks dies with its copy. A copy that dies in a
case has that case's verdict settled by the way it died, and another copy goes on behind it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from conformance.judging.verdicts import judge_death
from conformance.plan.run_options import Strictness
from conformance.reports.verdict import Outcome, Reason, Verdict
from tests.defects.faults import armed
from tests.faults import forks

from . import bench
from .measuring import HEALTHY
from .mutant import Mutant, StandIn

#: Seconds for one case. The slowest healthy case takes a fifth of it.
DEADLINE = 60.0
_CONTEXT = multiprocessing.get_context("fork")


@dataclass
class Job:
    """One mutant, or the healthy accelerator (None) or stand-in, with the cases it goes through."""

    mutant: Mutant | None
    cases: Sequence[str]
    sound: StandIn | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    seconds: float = 0.0
    begun: str | None = None

    @property
    def name(self) -> str:
        if self.mutant:
            return self.mutant.name
        return f"{HEALTHY}: {self.sound.name}" if self.sound else HEALTHY

    @property
    def stand_in(self) -> StandIn | None:
        return self.mutant.stand_in if self.mutant else self.sound

    @property
    def left(self) -> list[str]:
        return [case for case in self.cases if case not in self.verdicts]


def prepare() -> None:
    """Load everything that copies share, and keep it out of their garbage collections."""
    bench.loaded()
    forks.prepare()


def run_all(jobs: Sequence[Job], processes: int, on_done: Callable[[Job], None]) -> None:
    """Run every job to its end; ``on_done`` is called with each as it finishes."""
    waiting, running = _batches(jobs), {}
    while waiting or running:
        while waiting and len(running) < processes:
            batch = waiting.pop(0)
            running[_start(batch)] = batch
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            batch = running[connection]
            if _hear(batch, connection):
                continue
            del running[connection]
            for job in batch:
                if not job.left:
                    on_done(job)
            if left := [job for job in batch if job.left]:
                waiting.insert(0, left)


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group the jobs that share a copy: those of one stand-in, which then compute the host's side of a case once."""
    batches: dict[object, list[Job]] = {}
    for job in jobs:
        batches.setdefault(job.stand_in.name if job.stand_in else id(job), []).append(job)
    return list(batches.values())


_PROCESSES: dict[int, Any] = {}


def _start(batch: list[Job]) -> Connection:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(batch, theirs), daemon=False)
    process.start()
    theirs.close()
    _PROCESSES[id(ours)] = process
    return ours


def _hear(batch: list[Job], connection: Connection) -> bool:
    """Take one message; False when the copy has ended, and its death is then a verdict."""
    try:
        number, kind, case, *rest = connection.recv()
    except EOFError:
        process = _PROCESSES.pop(id(connection))
        process.join()
        connection.close()
        for job in batch:
            if job.begun is not None:
                job.verdicts[job.begun] = _death(job, process.exitcode)
                job.begun = None
        return False
    job = batch[number]
    if kind == "broken":
        raise RuntimeError(f"mutant {job.name!r} cannot be run: {case}")
    if kind == "start":
        job.begun = case
    else:
        outcome, reason, message, seconds = rest
        job.verdicts[case] = Verdict(Outcome(outcome), Reason(reason), message)
        job.seconds += seconds
        job.begun = None
    return True


def _death(job: Job, status: int) -> Verdict:
    strictness = job.mutant.strictness if job.mutant else Strictness.CI
    if status == -signal.SIGALRM:
        return judge_death(None, Reason.HANG, f"no end after {DEADLINE:g} s", strictness)
    return judge_death(None, Reason.CRASH, f"the process ended with status {status}", strictness)


def _work(batch: list[Job], connection: Connection) -> None:
    """In the copy: run what is left, and leave without tearing anything down."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    forks.settle()
    for number, job in enumerate(batch):
        try:
            with armed(job.mutant.fault) if job.mutant and not job.stand_in else nullcontext():
                for message in _verdicts(job):
                    connection.send((number, *message))
        except Exception:
            connection.send((number, "broken", traceback.format_exc()))
    os._exit(0)


def _bench(job: Job) -> bench.Bench | bench.StandInBench:
    if job.stand_in:
        return bench.StandInBench(job.stand_in, job.mutant)
    return bench.Bench(job.mutant.claims, job.mutant.strictness) if job.mutant else bench.Bench()


def _verdicts(job: Job) -> Iterator[tuple[Any, ...]]:
    place = _bench(job)
    for case in job.left:
        yield "start", case
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, DEADLINE)
        verdict = place.run(case)
        signal.setitimer(signal.ITIMER_REAL, 0)
        yield "end", case, verdict.outcome.value, verdict.reason.value, verdict.message, time.perf_counter() - started
        if verdict.reason is Reason.POISONED:
            return

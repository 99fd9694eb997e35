"""Runs of processes, with their times and their peak memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.reports.journal import JournalRecords, read_journal
from conformance.reports.verdict import Outcome

PLUGINS = Path(__file__).with_name("plugins")
#: Plugins that no measured run has: one writes files, one shuffles.
QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly")
#: pytest as it runs the bundled suites, here and with a peer: its logging plugin adds a handler to each of torch's 40
#: loggers six times a test, which takes as long as a short case.
PLAIN = ("-p", "no:logging", *QUIET)
#: The words that pytest has for the outcomes of a journal.
OUTCOMES = {Outcome.PASS: "passed", Outcome.SKIP: "skipped", Outcome.FAIL: "failed"}
#: Statuses of a pytest run that ran its tests: all passed, some failed, none selected or verified.
RAN = (0, 1, 5)


@dataclass(frozen=True)
class Finished:
    """Finished process.

    ``cpu_seconds`` is the processor time of the process and its children, which other load hardly changes. ``peak_mb``
    is the peak resident memory of the largest of these processes, in 10^6 bytes.
    """

    status: int
    started: float
    seconds: float
    cpu_seconds: float
    peak_mb: float
    output: str
    times: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    torch: bool = False

    @property
    def to_first_test(self) -> float:
        """Return the seconds from the start of the process to the start of the first test."""
        return self.times["first_start"] - self.started

    @property
    def to_first_verdict(self) -> float:
        """Return the seconds from the start of the process to the first verdict."""
        return self.times["first_end"] - self.started

    @property
    def executed(self) -> int:
        """Return the number of tests that passed or failed, without skipped ones."""
        return self.outcomes.get("passed", 0) + self.outcomes.get("failed", 0)

    @property
    def steady(self) -> float:
        """Return the seconds from the first verdict to the last, without what collection and the first test load."""
        return self.times["last_end"] - self.times["first_end"]

    @property
    def per_second(self) -> float:
        """Return the tests per second once everything is loaded."""
        return (self.executed - 1) / self.steady


def run(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end, with one thread per process.

    The caller must be small, because Linux counts its memory at the fork as the child's.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        started = time.time()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=_environment(environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.time() - started
        output.seek(0)
        cpu = usage.ru_utime + usage.ru_stime
        return Finished(process.returncode, started, seconds, cpu, _megabytes(usage.ru_maxrss), output.read())


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TOX_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


def _megabytes(maxrss: int) -> float:
    return maxrss / 1e6 if sys.platform == "darwin" else maxrss * 1024 / 1e6


def pytest(
    *arguments: str,
    cwd: Path,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run pytest with the stopwatch plugin; SystemExit with the last lines of output if it did not run the tests."""
    file = cwd / "stopwatch.json"
    file.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "stopwatch", *QUIET, *arguments]
    watching = {"PYTHONPATH": str(PLUGINS), "STOPWATCH_FILE": str(file)}
    finished = run(command, cwd=cwd, environment={**watching, **(environment or {})})
    _reject_unless_run(command, finished)
    seen = json.loads(file.read_text(encoding="utf-8"))
    collects_only = "--collect-only" in arguments
    if not collects_only and "first_start" not in seen["times"]:
        raise _ran_nothing(command)
    return Finished(**{**vars(finished), **seen})


def conformance(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> Finished:
    """Run the suite on the CPU accelerator, and take times and outcomes from its journal.

    The report goes below ``cwd``. Raises SystemExit when the run did not start or ran no case.
    """
    if "--collect-only" in arguments:
        return pytest("--accelerator=cpu", *arguments, cwd=cwd, environment=environment)
    report = cwd / "conformance-report" / "cpu"
    shutil.rmtree(report, ignore_errors=True)
    # Without the stopwatch: the journal has the times of each case as the worker took them, without a message's way.
    command = [sys.executable, "-m", "pytest", *QUIET, "--accelerator=cpu", *arguments]
    finished = run(command, cwd=cwd, environment=environment)
    # With 1 some verdict is a failure: the measurement stands, and the suite's own tests tell whether it may be so.
    _reject_unless_run(command, finished)
    if not (report / "journal.jsonl").exists():
        raise _ran_nothing(command)
    journal = read_journal(report / "journal.jsonl")
    if not journal.ended:
        raise _ran_nothing(command)
    planned = json.loads((report / "manifest.json").read_text(encoding="utf-8"))["cases"]
    outcomes = Counter(OUTCOMES[ended.verdict.outcome] for ended in journal.ended.values())
    return replace(finished, times=_times(journal), outcomes={**outcomes, "selected": len(planned)})


def _times(journal: JournalRecords) -> dict[str, float]:
    """Return the moments, in seconds since the epoch, at which the first case began and the first and last ended."""
    starts = [started.at for started in journal.started.values()]
    ends = [journal.started[id].at + ended.seconds for id, ended in journal.ended.items()]
    return {"first_start": min(starts), "first_end": min(ends), "last_end": max(ends)}


def _reject_unless_run(command: Sequence[str], finished: Finished) -> None:
    """Raise SystemExit with the last lines of the output if the status says that pytest did not run its tests."""
    if finished.status not in RAN:
        tail = "\n".join(finished.output.splitlines()[-20:])
        raise SystemExit(f"{' '.join(command)} ended with status {finished.status}:\n{tail}")


def _ran_nothing(command: Sequence[str]) -> SystemExit:
    return SystemExit(f"{' '.join(command)} ran no test; its selection matches nothing")

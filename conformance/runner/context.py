"""Context of a run: what its processes agree on, where its files are, and how to repeat one of its cases."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from conformance.accelerators.declaration import Declaration
from conformance.accelerators.spec import AcceleratorSpec
from conformance.base.errors import UsageError
from conformance.plan.run_options import RunOptions
from conformance.reports import redaction
from conformance.reports.journal import JournalWriter, read_journal, read_lines
from conformance.reports.redaction import selection
from conformance.reports.repro import repro
from conformance.reports.waivers.model import Waiver

#: Seconds to wait for a locked folder: a killed run's last process needs a moment to end.
_LOCK_TIMEOUT = 2.0
#: Lines of a journal in which its header stands: the first one, unless a kill has cut it.
_HEADER_LINES = 10

RUN_CONTEXT = pytest.StashKey["RunContext"]()
UNDER_TEST = pytest.StashKey["AcceleratorUnderTest"]()


@dataclass(frozen=True)
class AcceleratorUnderTest:
    """The loaded accelerator of this process: the object, its declaration, and its device."""

    accelerator: Any
    declaration: Declaration
    device: Any
    #: Waivers that apply to this device.
    waivers: tuple[Waiver, ...] = ()


@dataclass(frozen=True)
class ReportFolder:
    """Report folder of one accelerator."""

    path: Path
    #: Folder of a complete run that this one must not replace, for the header.
    beside: Path | None = None

    @property
    def journal(self) -> Path:
        """Return the file of the journal."""
        return self.path / "journal.jsonl"

    @property
    def manifest(self) -> Path:
        """Return the file of the manifest."""
        return self.path / "manifest.json"

    @property
    def stacks(self) -> Path:
        """Return the folder for the stacks of workers."""
        return self.path / "stacks"

    def new_manifest(self, run: str) -> Path:
        """Return where workers write the manifest of a run before the controller has accepted it."""
        return self.path / f"manifest.{run}.json"

    def setup_error(self, run: str) -> Path:
        """Return where a worker writes the sentence that says why the accelerator did not load."""
        return self.path / f"setup-error.{run}.txt"

    def budget(self, run: str) -> Path:
        """Return where the first probe of a run with a time budget notes when it began."""
        return self.path / f"budget.{run}"

    def facts(self, run: str) -> Path:
        """Return where the first worker writes facts that only a process with the device knows."""
        return self.path / f"facts.{run}.json"

    def header(self) -> Mapping[str, Any] | None:
        """Return the header of the run whose journal is in the folder, or None."""
        try:
            with self.journal.open("rb") as file:
                return read_lines(itertools.islice(file, _HEADER_LINES)).run
        except OSError:
            return None

    def lock(self) -> Callable[[], None]:
        """Lock the folder for this run and return the function that unlocks it. Raise UsageError if it is in use.

        The kernel unlocks the folder when the process dies. Windows has no such lock.
        """
        try:
            import fcntl  # not on every platform that imports this module
        except ImportError:
            return lambda: None
        descriptor = os.open(self.path, os.O_RDONLY)
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                os.close(descriptor)
                raise UsageError(
                    f"the report folder {os.path.relpath(self.path)} is in use by another run. "
                    "Wait until that run has ended, or choose another folder with --conformance-report DIR."
                ) from None
            except OSError:
                pass  # a file system without locks
            return lambda: os.close(descriptor)

    def tidy(self) -> None:
        """Delete what killed runs have left: plans and facts that no run accepted, and stacks of their workers."""
        left = ("manifest.*.json", "facts.*.json", "budget.*", "setup-error.*.txt", "stacks/gw*", "stacks/*.output.txt")
        for pattern in left:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def create(self) -> None:
        """Create the folder. Raise UsageError if it cannot be written."""
        try:
            self.stacks.mkdir(parents=True, exist_ok=True)
            # Access rights say nothing about read-only and full file systems; only a file that is written does.
            probe = self.path / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"the report folder {self.path} cannot be written: {error.strerror}. "
                "Choose another with --conformance-report DIR."
            ) from error


def folder_for(options: RunOptions, name: str, paths: Sequence[str], argv: Sequence[str]) -> ReportFolder:
    """Return the report folder of a run. A narrowed run gets a folder of its own where it would replace a complete one.

    A complete run is one that no option has narrowed; its folder stays as it is, finished or not.
    """
    whole = ReportFolder(options.report / name)
    header = whole.header()
    complete = header is not None and not selection(redaction.strings(header.get("argv")))
    if not complete or not (selection(argv) or (paths and not header.get("paths"))):  # type: ignore[union-attr]
        return whole
    part = ReportFolder(options.report / f"{name}-selection", beside=whole.path)
    # A narrowed run has nothing to resume before its first one. The complete run's journal then refuses it.
    return whole if options.resume and not part.journal.exists() else part


@dataclass(frozen=True)
class RunContext:
    """Values that are the same in every process of a run."""

    options: RunOptions
    accelerator: AcceleratorSpec
    folder: ReportFolder
    #: Random name of the run.
    run: str
    #: Bytes of an earlier journal that count as done. Fixed at the start, so that all workers collect the same cases.
    journal_limit: int
    #: Paths on the command line; without any, the bundled suites run.
    paths: tuple[str, ...]
    #: The command line as it was typed; sys.argv of a worker is another.
    argv: tuple[str, ...]

    @cached_property
    def claimed_answers(self) -> dict[str, str] | None:
        """Answers of another run that are judged in place of this device's, or None."""
        if self.options.answers is None:
            return None
        from conformance.judging.answers import read_answers

        return read_answers(self.options.answers)

    @property
    def bundled(self) -> bool:
        """Tell whether the bundled suites run."""
        return not self.paths

    @property
    def done(self) -> frozenset[str]:
        """Return the ids of cases that already have a verdict in the journal that ``--resume`` continues."""
        if not self.options.resume or not self.folder.journal.exists():
            return frozenset()
        return frozenset(read_journal(self.folder.journal, self.journal_limit).ended)


def is_worker(config: pytest.Config) -> bool:
    """Tell whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_input(context: RunContext) -> dict[str, Any]:
    """Return what the controller sends to its workers; they read the same command line for the rest."""
    return {
        "spec": context.accelerator.text,
        "folder": str(context.folder.path),
        "run": context.run,
        "journal_limit": context.journal_limit,
        "paths": list(context.paths),
        "cases": [id + context.options.calls.get(id, "") for id in context.options.cases],
    }


def open_journal(context: RunContext) -> JournalWriter:
    """Open the journal for this process, which may be one of several writers."""
    return JournalWriter(context.folder.journal, worker_name())


def worker_name() -> str:
    """Return the name of this process in the journal and in the folder of stacks."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def header_of(context: RunContext) -> dict[str, Any]:
    """Return what was asked for, without absolute paths, which would reveal names of people and machines."""
    options = context.options
    return {
        "accelerator": context.accelerator.name,
        "spec": options.accelerator,
        "paths": [redacted(path) for path in context.paths],
        "argv": [redacted(word) for word in context.argv],
        "seed": options.seed,
        "challenge": options.challenge,
        "strictness": options.strictness.value,
        "rank_isolation": options.rank_isolation.value,
        "profile": options.profile,
    }


def redacted(word: str) -> str:
    """Return the word, with only the last part of an absolute path."""
    return "…/" + Path(word).name if word.startswith("/") else word


def repro_of(context: RunContext, case_id: str, metrics: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the command line that repeats one case of this run."""
    return repro(header_of(context), case_id, metrics)

"""What every process of a run agrees on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from conformance.accelerators.spec import AcceleratorSpec
from conformance.reports.journal import JournalWriter, read_journal
from conformance.run_options import RunOptions
from conformance.runner.layout import ReportFolder

SETTINGS = pytest.StashKey["Settings"]()


@dataclass(frozen=True)
class Settings:
    """What every process of a run agrees on."""

    options: RunOptions
    subject: AcceleratorSpec
    folder: ReportFolder
    run: str
    #: How much of an earlier journal counts as done; fixed at the start so that all workers collect the same.
    journal_limit: int
    #: The paths that were typed; without any, the bundled suites run.
    paths: tuple[str, ...]
    #: The command line as it was typed; a worker's own sys.argv says nothing.
    argv: tuple[str, ...]

    @cached_property
    def claimed_answers(self) -> dict[str, str] | None:
        """The answers of another run that are to be judged in place of this device's."""
        if self.options.answers is None:
            return None
        from conformance.answers import read_answers

        return read_answers(self.options.answers)

    @property
    def bundled(self) -> bool:
        return not self.paths

    @property
    def done(self) -> frozenset[str]:
        if not self.options.resume or not self.folder.journal.exists():
            return frozenset()
        return frozenset(read_journal(self.folder.journal, self.journal_limit).ended)


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def told_to_workers(settings: Settings) -> dict[str, Any]:
    return {
        "spec": settings.subject.text,
        "folder": str(settings.folder.path),
        "run": settings.run,
        "journal_limit": settings.journal_limit,
        "paths": list(settings.paths),
    }


def open_journal(settings: Settings) -> JournalWriter:
    return JournalWriter(settings.folder.journal, os.environ.get("PYTEST_XDIST_WORKER", "main"))

"""Where a run's files are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import UsageError


@dataclass(frozen=True)
class ReportFolder:
    """One accelerator's report folder."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def stacks(self) -> Path:
        return self.path / "stacks"

    def new_manifest(self, run: str) -> Path:
        """Where workers write the manifest of a run before the controller has accepted it."""
        return self.path / f"manifest.{run}.json"

    def setup_error(self, run: str) -> Path:
        """Where a worker says in one sentence why the accelerator did not load."""
        return self.path / f"setup-error.{run}.txt"

    def create(self) -> None:
        try:
            self.stacks.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"the report folder {self.path} cannot be written: {error.strerror}. "
                "Choose another with --conformance-report DIR."
            ) from error

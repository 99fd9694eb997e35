"""Journal of a run: one JSON line when a case starts and one when it ends.

Every process appends whole lines to the same file with one ``write`` each. A killed run therefore loses at most the
line that was being written. Folding the journal gives the report; see ``fold.py``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.base.errors import JournalError
from conformance.reports.verdict import Outcome, Reason, Verdict

SCHEMA = 1


@dataclass(frozen=True)
class CaseStart:
    """Start of a case, and the process that runs it."""

    id: str
    worker: str
    pid: int
    at: float
    #: Declared state of an adaptive case, against which the death of its process is judged.
    claim: str | None = None


@dataclass(frozen=True)
class CaseEnd:
    """End of a case, with its verdict."""

    id: str
    verdict: Verdict
    seconds: float
    worker: str


@dataclass(frozen=True)
class JournalRecords:
    """Journal as read. ``ended`` has the first verdict of each id; ids of later ones are in ``duplicates``."""

    run: Mapping[str, Any] | None = None
    accelerator: Mapping[str, Any] | None = None
    started: Mapping[str, CaseStart] = field(default_factory=dict)
    ended: Mapping[str, CaseEnd] = field(default_factory=dict)
    duplicates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    finish: Mapping[str, Any] | None = None
    torn_lines: int = 0
    size: int = 0

    @property
    def in_flight(self) -> dict[str, CaseStart]:
        """Return the cases that began and have no verdict."""
        return {id: start for id, start in self.started.items() if id not in self.ended}


class JournalWriter:
    """Writer of a journal. Each line is one ``write`` to an ``O_APPEND`` file, so many workers can share it."""

    def __init__(self, path: Path, worker: str = "main") -> None:
        self.path, self.worker = path, worker
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {path}: {error.strerror}. Choose another --conformance-report."
            ) from error
        self._end_torn_line()

    def _end_torn_line(self) -> None:
        """End the last line of an existing journal, if a kill has cut it."""
        size = os.fstat(self._fd).st_size
        # A resumed journal may end in a line that a kill has cut; the next record must not continue it.
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _append(self, record: Mapping[str, Any]) -> None:
        os.write(self._fd, json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n")

    def run(self, **header: Any) -> None:
        self._append({"kind": "run", "schema": SCHEMA, **header})

    def accelerator(self, **facts: Any) -> None:
        """Write facts that only a process with the device knows: names of devices, the merged declaration."""
        self._append({"kind": "accelerator", **facts})

    def start(self, case_id: str, claim: str | None = None) -> None:
        record = {"kind": "start", "id": case_id, "worker": self.worker, "pid": os.getpid(), "t": round(time.time(), 3)}
        self._append({**record, "claim": claim} if claim else record)

    def end(self, case_id: str, verdict: Verdict, seconds: float) -> None:
        """Append the verdict of a case. ``seconds`` is its duration."""
        self._append(
            {
                "kind": "end",
                "id": case_id,
                "outcome": verdict.outcome.value,
                "reason": verdict.reason.value,
                "message": verdict.message,
                "metrics": verdict.metrics,
                "seconds": round(seconds, 6),
                "worker": self.worker,
                "t": round(time.time(), 3),
            }
        )

    def note(self, text: str) -> None:
        self._append({"kind": "note", "text": text})

    def finish(self, **facts: Any) -> None:
        self._append({"kind": "finish", **facts})

    def close(self) -> None:
        os.close(self._fd)


def read_journal(path: Path, limit: int | None = None) -> JournalRecords:
    """Return a journal, or its first ``limit`` bytes. Incomplete lines of killed processes are counted and ignored."""
    try:
        with path.open("rb") as file:
            data = file.read() if limit is None else file.read(limit)
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}.") from error
    return replace(read_lines(data.splitlines()), size=len(data))


def read_lines(lines: Iterable[bytes]) -> JournalRecords:
    """Return the records in some lines of a journal."""
    reader = _JournalReader()
    for line in lines:
        reader.take(line)
    return reader.records(0)


class _JournalReader:
    """Collector of lines into records. It counts every line that is no journal line as torn."""

    def __init__(self) -> None:
        self.run: Mapping[str, Any] | None = None
        self.accelerator: Mapping[str, Any] | None = None
        self.started: dict[str, CaseStart] = {}
        self.ended: dict[str, CaseEnd] = {}
        self.duplicates: list[str] = []
        self.notes: list[str] = []
        self.finish: Mapping[str, Any] | None = None
        self.torn = 0

    def take(self, line: bytes) -> None:
        """Take one line of the journal. A line that cannot be understood is counted as torn, and never an error."""
        try:
            record = json.loads(line)
            getattr(self, "_take_" + record["kind"])(record)
        except (ValueError, KeyError, TypeError, AttributeError):
            # An empty line lost nothing.
            self.torn += bool(line.strip())

    def _take_run(self, record: dict[str, Any]) -> None:
        # A resumed run writes a second header; the first one tells when the run began.
        self.run = self.run or record

    def _take_accelerator(self, record: dict[str, Any]) -> None:
        self.accelerator = self.accelerator or record

    def _take_start(self, record: dict[str, Any]) -> None:
        start = CaseStart(record["id"], record["worker"], record["pid"], record["t"], record.get("claim"))
        self.started[start.id] = start

    def _take_end(self, record: dict[str, Any]) -> None:
        """Take the verdict of a case. Only the first one counts; later ones are noted as duplicates."""
        verdict = Verdict(Outcome(record["outcome"]), Reason(record["reason"]), record["message"], record["metrics"])
        if record["id"] in self.ended:
            self.duplicates.append(record["id"])
            return
        self.ended[record["id"]] = CaseEnd(record["id"], verdict, record["seconds"], record["worker"])

    def _take_note(self, record: dict[str, Any]) -> None:
        self.notes.append(record["text"])

    def _take_finish(self, record: dict[str, Any]) -> None:
        self.finish = record

    def records(self, size: int) -> JournalRecords:
        """Return what has been collected from a journal of ``size`` bytes."""
        return JournalRecords(
            self.run,
            self.accelerator,
            self.started,
            self.ended,
            tuple(self.duplicates),
            tuple(self.notes),
            self.finish,
            self.torn,
            size,
        )

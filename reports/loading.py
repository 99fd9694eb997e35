"""Loading of a report from a report folder, a ``report.json``, or the journal of a killed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.errors import JournalError, UsageError
from conformance.reports.json_files import MAX_BYTES, read_json, size_text
from conformance.reports.model import Report
from conformance.reports.report_json import read_hashed, read_report

if TYPE_CHECKING:
    from conformance.reports.journal import JournalRecords


#: Cases of all reports that one command compares case by case. Each takes some 1,200 bytes of memory there.
MAX_CASES_TOGETHER: int = 400_000
#: Cases of one report on a page. Each takes some 2,700 bytes while the page is made.
MAX_CASES_OF_COLUMN: int = 180_000


def load_together(paths: Iterable[Path]) -> list[Report]:
    """Return several reports; UsageError if they have too many cases for a command that compares them."""
    reports: list[Report] = []
    for path in paths:
        reports.append(load(path))
        require_at_most(MAX_CASES_TOGETHER, reports)
    return reports


def require_at_most(number: int, reports: Iterable[Report]) -> None:
    """Raise UsageError if the reports have more cases than this together."""
    found = sum(len(report.cases) for report in reports)
    if found > number:
        raise UsageError(
            f"{found:,} cases are more than the {number:,} that this command reads. "
            "Name reports of fewer cases: run with --area, --case or --shard."
        )


def load(path: Path) -> Report:
    """Return the report at ``path``.

    In a folder the journal comes first: after a kill, ``report.json`` may be from an earlier run.
    """
    if path.is_dir():
        return _load_folder(path)
    if not path.exists():
        raise UsageError(f"there is no {path}. Name a report folder, a report.json, or a journal.jsonl.")
    return load_journal(path) if path.suffix == ".jsonl" else read_report(path)


@dataclass(frozen=True)
class ReportFile:
    """File that was read once: the signature is checked over its bytes, and the report is read from the same bytes."""

    path: Path
    #: Hash of the bytes, and the function that returns their report.
    sha256: str
    report: Callable[[], Report]


def read_report_file(path: Path) -> ReportFile:
    """Return the file that a signature covers: ``path``, or the ``report.json`` in a report folder.

    A journal is never read here: it may differ from the report beside it, and no signature covers it.
    """
    if not path.exists():
        raise UsageError(f"there is no {path}. Name a report folder or a report.json.")
    file = report_json_in(path) if path.is_dir() else path
    if file is None or file.suffix == ".jsonl":
        raise JournalError(
            f"{path} holds no report.json; a signature covers that file, and no journal. Write it with: "
            "conformance report FOLDER --format json."
        )
    report, sha256 = read_hashed(file)
    return ReportFile(file, sha256, report)


def report_json_in(folder: Path) -> Path | None:
    """Return the ``report.json`` in a folder, or in its only report folder; None if there is none."""
    inside = [folder] if (folder / "report.json").is_file() else _report_folders(folder)
    file = inside[0] / "report.json" if len(inside) == 1 else None
    return file if file is not None and file.is_file() else None


def _load_folder(folder: Path) -> Report:
    """Return the report in a folder, or in its only subfolder. A journal with its manifest comes first."""
    journal, report = folder / "journal.jsonl", folder / "report.json"
    if journal.is_file() and (folder / "manifest.json").is_file():
        return load_journal(journal)
    if report.is_file():
        return read_report(report)
    if journal.is_file():
        return load_journal(journal)
    inside = _report_folders(folder)
    if len(inside) == 1:
        return _load_folder(inside[0])
    named = f" It holds reports of {', '.join(child.name for child in inside)}; name one." if inside else ""
    raise JournalError(f"{folder} holds neither a report.json nor a journal.jsonl.{named}")


def _report_folders(folder: Path) -> list[Path]:
    """Return subfolders with a journal or a report: ``conformance-report`` has one for each accelerator."""
    try:
        children = sorted(folder.iterdir())
    except OSError as error:
        raise JournalError(f"cannot read {folder}: {error.strerror}.") from None
    return [child for child in children if (child / "journal.jsonl").is_file() or (child / "report.json").is_file()]


def load_journal(path: Path) -> Report:
    """Return the report of a journal, folded with the manifest beside it if there is one."""
    # Imported here, because finished reports do not need it.
    from conformance.reports.fold import fold, fold_without_manifest

    records = _read(path)
    if records.run is None and not records.ended:
        raise JournalError(f"{path} is not a journal of this suite: it has no run and no verdict.")
    manifest = path.with_name("manifest.json")
    return fold(read_manifest(manifest), records) if manifest.is_file() else fold_without_manifest(records)


def _read(path: Path) -> JournalRecords:
    """Return the records of a journal. Raises ``JournalError`` if it is unreadable, too large or too deeply nested."""
    from conformance.reports.journal import read_journal

    try:
        size = path.stat().st_size
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}.") from None
    if size > MAX_BYTES:
        raise JournalError(f"{path} is larger than {size_text(MAX_BYTES)}; no journal of this suite is.")
    try:
        return read_journal(path, MAX_BYTES)
    except RecursionError:
        raise JournalError(f"{path} is nested too deeply to be a journal.") from None


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest as JSON; ``fold`` checks its members."""
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise JournalError(f"{path} is not a manifest of this suite.")
    return manifest

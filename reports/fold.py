"""Folding of a journal into a report: every planned case gets exactly one verdict, or is named as unaccounted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.base.accelerator_name import is_accelerator_name
from conformance.base.errors import JournalError
from conformance.reports import redaction
from conformance.reports.journal import CaseEnd, JournalRecords
from conformance.reports.model import (
    AcceleratorRecord,
    Accounting,
    CaseRecord,
    DeclarationRecord,
    DeclaredCell,
    Environment,
    Invocation,
    Report,
    Run,
    Suite,
    WaiverRecord,
    count_cases,
    declared_sha256,
)
from conformance.reports.plain_text import told_apart, without_folders
from conformance.reports.planned import PlannedCase
from conformance.reports.report_json import read_planned
from conformance.reports.repro import ReproLine, repro_line
from conformance.reports.stack import with_fingerprint
from conformance.reports.verdict import Outcome, Reason

#: Values of the axis ``mode``, to recognize it in ids when the manifest is lost.
_MODES = frozenset({"inference", "training"})
#: Seconds, about 30 years. A larger duration is an error of the journal and counts as 0.
_LONGEST = 1e9
_LOST_MANIFEST = "The manifest is missing: cases that never began are not counted."


def fold(manifest: Mapping[str, Any], records: JournalRecords) -> Report:
    """Return the report of a run, finished or killed. Equal inputs give equal reports."""
    planned = planned_cases(manifest)
    header = records.run or {}
    _reject_foreign_manifest(manifest, header)
    _reject_odd_accelerator(header)
    known = {case.id for case in planned}
    ended = records.ended
    repro = repro_line(header)
    cases = tuple(_judged(case, ended[case.id], repro) for case in planned if case.id in ended)
    accounting = _accounting(planned, records, known)
    return replace(
        head(manifest, records, len(planned)),
        waivers=_waivers(cases),
        accounting=accounting,
        totals=count_cases(cases, accounting),
        notes=tuple(redaction.message(note) for note in records.notes),
        cases=cases,
    )


def head(manifest: Mapping[str, Any], records: JournalRecords, cases: int = 0) -> Report:
    """Return the report without its cases: the facts about run, accelerator, environment and declaration."""
    header, reported = records.run or {}, records.accelerator or {}
    return with_fingerprint(
        Report(
            run=_run(manifest, records, cases),
            accelerator=_accelerator(header, reported),
            environment=_environment(header.get("environment")),
            declaration=_declaration(reported),
        )
    )


def fold_without_manifest(records: JournalRecords) -> Report:
    """Return the report of a journal alone, with a note that it lacks the cases that never began."""
    header = records.run or {}
    # A case may have ended without a start line that can be read.
    ids = [id for id in dict.fromkeys([*records.started, *records.ended]) if isinstance(id, str)]
    guessed = {
        "sha256": str(header.get("manifest", "")),
        "suite": str(header.get("suite", "")),
        "cases": [_guessed_entry(id) for id in ids],
    }
    report = fold(guessed, records)
    return replace(report, notes=(_LOST_MANIFEST, *report.notes))


def planned_cases(manifest: Mapping[str, Any]) -> tuple[PlannedCase, ...]:
    """Return the planned cases of a run's manifest; JournalError if it has none, or plans an id twice."""
    entries = manifest.get("cases")
    if not isinstance(entries, list):
        raise JournalError("the manifest has no list of cases; it is not a manifest of this suite.")
    known = [_without_nodeid(entry) for entry in entries]
    return read_planned(known, "manifest.cases")


def _without_nodeid(entry: Any) -> Any:
    return {name: entry[name] for name in entry if name != "nodeid"} if isinstance(entry, dict) else entry


def _guessed_entry(id: str) -> dict[str, Any]:
    """Return a manifest entry that is guessed from a case id, for a journal without its manifest."""
    subject, _, values = id.partition("[")
    parts = values.rstrip("]").split("-") if values else []
    axes = {"mode" if part in _MODES else f"axis{i}" if i else "dtype": part for i, part in enumerate(parts)}
    return {"id": id, "area": subject.split(".", 1)[0], "axes": axes}


def _reject_foreign_manifest(manifest: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Raise ``JournalError`` if the journal's header names another manifest than the one beside it."""
    expected, found = manifest.get("sha256"), header.get("manifest")
    if found and expected and found != expected:
        own, beside = told_apart(str(found), str(expected))
        raise JournalError(
            f"the journal belongs to manifest {own}, the manifest beside it is {beside}; "
            "put the journal's own manifest beside it, or remove the manifest."
        )


def _reject_odd_accelerator(header: Mapping[str, Any]) -> None:
    """Raise ``JournalError`` if no run can have been started with the header's text for ``--accelerator``."""
    # As it stands there: redaction would make a name of one with invisible characters.
    spec = str(header.get("spec") or "")
    if spec and not is_accelerator_name(spec):
        raise JournalError(f"the journal names the accelerator {spec[:80]!a}, which no run can be started with.")


def _judged(planned: PlannedCase, ended: CaseEnd, repro: ReproLine) -> CaseRecord:
    """Return the record of a case that has ended. Untrusted text of the journal is cleaned."""
    verdict = ended.verdict
    facts = redaction.flat_facts(verdict.metrics if isinstance(verdict.metrics, Mapping) else {})
    return CaseRecord(
        **vars(planned),
        outcome=verdict.outcome,
        reason=verdict.reason,
        message=redaction.message(verdict.message),
        metrics=facts,
        seconds=_seconds(ended.seconds),
        ranks=planned.world_size or 1,
        # Only a failure has to be repeated; other cases need no command in the report.
        repro=repro.of(planned.id, facts) if verdict.outcome is Outcome.FAIL else "",
    )


def _seconds(value: Any) -> float:
    return round(float(value), 6) if isinstance(value, (int, float)) and 0 <= value < _LONGEST else 0.0


def _run(manifest: Mapping[str, Any], records: JournalRecords, cases: int) -> Run:
    """Return the facts about the run, from the manifest and the journal's first and last records."""
    header, finish = records.run or {}, records.finish or {}
    profile = header.get("profile")
    return Run(
        id=redaction.word(header.get("run")),
        started=redaction.word(header.get("started")),
        finished=redaction.word(finish.get("finished")),
        suite=_suite(manifest, cases, redaction.word(header.get("suite_files"))),
        invocation=_invocation(header),
        profile=None if profile is None else redaction.word(profile),
        strictness=redaction.word(header.get("strictness", "ci")),
    )


def _suite(manifest: Mapping[str, Any], cases: int, files: str) -> Suite:
    version, sha256, commit = (redaction.word(manifest.get(name)) for name in ("suite", "sha256", "commit"))
    return Suite(version, sha256, cases, commit, files)


def _invocation(header: Mapping[str, Any]) -> Invocation:
    """Return the command line of the run, without what must not be published."""
    argv = redaction.strings(header.get("argv"))
    seed, workers = (redaction.whole(header.get(name)) for name in ("seed", "workers"))
    selection = redaction.selection(argv)
    if header.get("paths"):
        selection = (*selection, "paths")  # files of the vendor replace the bundled suites
    return Invocation(argv, selection, seed, workers, redaction.word(header.get("challenge")))


def _accelerator(header: Mapping[str, Any], reported: Mapping[str, Any]) -> AcceleratorRecord:
    """Return the record of the accelerator. Facts that the journal lacks become empty."""
    facts = redaction.mapping(redaction.mapping(header.get("environment")).get("facts"))
    return AcceleratorRecord(
        name=redaction.word(header.get("accelerator") or reported.get("name") or "unknown"),
        spec=redaction.word(header.get("spec")),
        device=redaction.word(reported.get("device")),
        devices=redaction.flat(reported.get("devices") or 0),
        device_names=redaction.strings(reported.get("device_names")),
        communication_backend=redaction.word(reported.get("communication_backend")),
        driver=redaction.word(reported.get("driver")),
        runtime=redaction.word(reported.get("runtime")),
        torch=redaction.word(redaction.mapping(facts.get("packages")).get("torch")),
        package=redaction.word(reported.get("package")),
        torch_build=redaction.word(reported.get("torch_build")),
    )


def _environment(found: Any) -> Environment:
    """Return the facts, plugins and variables. The fingerprint follows when the whole stack is known."""
    known = redaction.mapping(found)
    facts = redaction.environment(redaction.mapping(known.get("facts")))
    variables = redaction.flat_facts(redaction.mapping(known.get("variables")))
    return Environment("", facts, redaction.strings(known.get("plugins")), variables)


def _declaration(reported: Mapping[str, Any]) -> DeclarationRecord:
    """Return the declared cells, with the hash over them. Rows that are no lists are left out."""
    found = redaction.mapping(reported.get("declaration"))
    rows = found.get("cells")
    cells = tuple(_declared_cell(row) for row in (rows if isinstance(rows, list) else []) if isinstance(row, list))
    return DeclarationRecord(declared_sha256(cells), cells)


def _declared_cell(row: Sequence[Any]) -> DeclaredCell:
    cell, state, detail, reason, source = [redaction.word(value) for value in [*row[:5], *[""] * 5][:5]]
    return DeclaredCell(cell, state, detail, without_folders(reason), source)


def _waivers(cases: Iterable[CaseRecord]) -> WaiverRecord:
    reasons = [(case.id, case.reason) for case in cases]
    used = tuple(id for id, reason in reasons if reason is Reason.WAIVED)
    return WaiverRecord(used=used, stale=tuple(id for id, reason in reasons if reason is Reason.WAIVER_STALE))


def _accounting(planned: Sequence[PlannedCase], records: JournalRecords, known: set[str]) -> Accounting:
    """Return the planned cases without a verdict, and everything in the journal that was not planned."""
    return Accounting(
        unaccounted=tuple(case for case in planned if case.id not in records.ended),
        duplicates=tuple(dict.fromkeys(map(redaction.word, records.duplicates))),
        unknown=tuple(redaction.word(id) for id in records.ended if id not in known),
        in_flight=tuple(redaction.word(id) for id in records.started if id in known and id not in records.ended),
        torn_lines=records.torn_lines,
    )

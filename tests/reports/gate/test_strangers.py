"""Forgeries by strangers: refused, or in the table of docs/gate.md about what one file cannot show."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from conformance.reports.declaration.claims import claims_of
from conformance.reports.model import CaseRecord, DeclarationRecord, DeclaredCell, Report
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome, Reason, check_pair

from .edits import is_native
from .honest import honest, honest_manifest, judged, mended, rules_of
from .strangers import STRANGERS, Stranger

#: Cases that failed in the run that the strangers forge.
FAILED = 12


@cache
def failing() -> Report:
    """A run in which some operators are wrong, as a run would write it."""
    ids = {
        case.id for case in [case for case in honest().cases if is_native(case) and case.area == "operators"][:FAILED]
    }
    wrong = {
        "outcome": Outcome.FAIL,
        "reason": Reason.WRONG,
        "message": "3 of 8 elements differ",
        "repro": "pytest --accelerator=sim --case x",
    }
    cases = tuple(
        replace(c, **wrong, metrics={**c.metrics, "max_budget_ratio": 31.0}) if c.id in ids else c
        for c in honest().cases
    )
    return mended(replace(honest(), cases=cases))


def forged(stranger: Stranger) -> Report:
    report = failing()
    for path, value in stranger.head.items():
        text = value.format(started=report.run.started) if isinstance(value, str) else value
        report = _with(report, path.split("."), tuple(text) if isinstance(text, list) else text)
    report = _claims(report, stranger.claims)
    lost = []
    kept: list[CaseRecord] = []
    for number, case in enumerate(report.cases):
        changes = dict(stranger.failed if case.outcome is Outcome.FAIL else stranger.passed)
        if case.outcome is Outcome.SKIP or not changes:
            kept.append(case)
        elif changes.pop("lost", False):
            lost.append(PlannedCase(**{field.name: getattr(case, field.name) for field in fields(PlannedCase)}))
        elif not changes.pop("dropped", False):
            kept.append(_changed(case, changes, number))
    report = replace(report, cases=tuple(kept), accounting=replace(report.accounting, unaccounted=tuple(lost)))
    return report if stranger.careless else mended(report)


def _changed(case: CaseRecord, changes: dict[str, Any], number: int) -> CaseRecord:
    known = {**changes}
    if "reason" in known:
        known["reason"] = Reason(known["reason"])
        known["outcome"] = Outcome(known.get("outcome", case.outcome.value))
        check_pair(known["outcome"], known["reason"])
    if "id" in known:
        known["id"] = known["id"].format(n=number)
    if "requires" in known:
        known["requires"] = tuple(known["requires"])
    return replace(case, **known)


def _with(value: Any, path: list[str], changed: Any) -> Any:
    name, *rest = path
    if isinstance(value, dict):
        return {**value, name: changed}
    return replace(value, **{name: _with(getattr(value, name), rest, changed) if rest else changed})


def _claims(report: Report, kind: str) -> Report:
    cells = report.declaration.cells
    failed = [case.requires[0] for case in report.cases if case.outcome is Outcome.FAIL]
    changed = {
        "": cells,
        "emptied": (),
        "denied-oddly": (*cells, *(DeclaredCell(cell, "unsupported", "tomorrow") for cell in failed)),
        "host": tuple(replace(cell, detail="host") if cell.state == "supported" else cell for cell in cells),
        "twice": cells + cells[:1],
        "words": tuple(replace(cell, state="ok") if n == 0 else cell for n, cell in enumerate(cells)),
    }[kind]
    return replace(report, declaration=DeclarationRecord("", changed))


def test_the_run_that_is_forged_is_refused_for_its_failures_alone() -> None:
    assert rules_of(judged(failing(), honest_manifest())) == {"G06"}
    assert claims_of(failing())


def test_what_strangers_forge_is_refused_or_cannot_be_seen_in_one_file() -> None:
    accepted = {one.name for one in STRANGERS if not rules_of(judged(forged(one), honest_manifest()))}

    assert accepted == {one.name for one in STRANGERS if not one.seen}
    assert sum(one.seen for one in STRANGERS) >= 60
    assert len({one.name for one in STRANGERS}) == len(STRANGERS)

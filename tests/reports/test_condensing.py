"""Whatever a run saw, the corrected declaration says it of every cell, and what was right before stays as it was."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from conformance.accelerators.claims import parse_cell
from conformance.accelerators.declaration import Declaration, Detail, State
from conformance.cli.claims_text import declaration_of_cells
from conformance.reports.declaration.condensing import corrected_cells
from conformance.reports.declaration.corrections import correct
from conformance.reports.fold import fold
from conformance.reports.journal import CaseEnd, JournalRecords
from conformance.reports.model import DeclarationRecord, DeclaredCell, Report
from conformance.reports.verdict import Reason, Verdict, failed, passed, skipped
from tests.reports.samples import HEADER, SHA, entry
from tests.rows import every_row

AXES = {"dtype": "float16", "mode": "inference"}
NAMES = [f"{prefix}op{n}" for prefix in ("", "linalg.", "nn.functional.", "nn.") for n in range(6)]
DENIED, CLAIMED = (State.UNSUPPORTED, Detail.NOT_YET), (State.SUPPORTED, Detail.NATIVE)


def declared(draw: random.Random) -> list[DeclaredCell]:
    """Some patterns, some names; sometimes nothing."""
    subjects = ["*", "linalg.*", "nn.*", "nn.functional.*", *draw.sample(NAMES, 3)]
    chosen = [subject for subject in subjects if draw.random() < 0.5]
    yes, no = ("supported", "native", ""), ("unsupported", "hardware", "no unit")
    return [DeclaredCell(f"operators.{one}[float16-inference]", *draw.choice((yes, yes, no))) for one in chosen]


def seen(draw: random.Random, state: State, share: float) -> Verdict:
    """A verdict that can follow from the declared state; ``share`` of what is claimed is not there."""
    there = draw.random() > share
    if draw.random() < 0.1:
        return skipped(Reason.ENVIRONMENT, "no memory")
    if state is State.SUPPORTED:
        return passed() if there else failed(Reason.OVER_DECLARED, "not there")
    if state is State.UNSUPPORTED:
        confirmed = skipped(Reason.UNSUPPORTED, "confirmed", probe="refused")
        return failed(Reason.UNDER_DECLARED, "but works") if there and draw.random() < 0.3 else confirmed
    return skipped(Reason.UNDECLARED, "silent", probe=draw.choice(("right", "refused", "raised", "wrong")))


def a_run(seed: int) -> tuple[Report, Declaration, dict[str, bool]]:
    """A complete run of 24 operators, some of them beyond the reference, under a random declaration."""
    draw = random.Random(seed)
    cells = declared(draw)
    declaration = declaration_of_cells(cells)
    gone = {prefix: draw.choice((0.0, 0.1, 0.5, 0.95, 1.0)) for prefix in ("", "linalg", "nn")}
    entries, ended, reference = [], {}, {}
    for name in NAMES:
        planned = {**entry(f"operators.{name}", **AXES), "adaptive": True, "in_reference": draw.random() < 0.85}
        cell = planned["requires"][0]
        state = declaration.claim(parse_cell(cell), in_reference=planned["in_reference"]).state
        share = gone[name.split(".")[0] if "." in name else ""]
        entries.append(planned)
        reference[cell] = planned["in_reference"]
        ended[planned["id"]] = seen(draw, state, share)
    return report_with(entries, ended, cells), declaration, reference


def report_with(entries: list[dict[str, Any]], ended: dict[str, Verdict], cells: list[DeclaredCell]) -> Report:
    records = JournalRecords(run=HEADER, ended={id: CaseEnd(id, verdict, 0.0, "main") for id, verdict in ended.items()})
    report = fold({"sha256": SHA, "suite": "0.1.0", "cases": entries}, records)
    return replace(report, declaration=DeclarationRecord("", tuple(cells)))


@every_row(range(200), name=lambda seed: f"seed {seed}")
def test_every_correction_is_said_and_nothing_else_changes(seed: int) -> None:
    report, before, reference = a_run(seed)
    found = correct(report)

    after = declaration_of_cells(corrected_cells(report, found))

    wanted = {one.cell: CLAIMED if one.claim.state == "supported" else DENIED for one in found.corrections}
    harmless = {case.id for case in report.cases if case.metrics.get("probe") in ("refused", "raised")}
    for cell, in_reference in reference.items():
        claim = after.claim(parse_cell(cell), in_reference=in_reference)
        was = before.claim(parse_cell(cell), in_reference=in_reference)
        if cell in wanted:
            assert (claim.state, claim.detail) == wanted[cell], cell
        elif was.state is State.UNDECLARED and cell in harmless:
            # A refusal that nobody declared may come under a pattern that denies: it is true.
            assert claim.state in (State.UNDECLARED, State.UNSUPPORTED), cell
        else:
            assert claim.state is was.state, cell


def test_condensing_writes_less_than_one_claim_a_correction() -> None:
    runs = [a_run(seed)[0] for seed in range(200)]
    sizes = [(len(correct(run).corrections), len(corrected_cells(run, correct(run)))) for run in runs]

    assert sum(written < corrected for corrected, written in sizes) > 20

"""Edits of a report, from which tests put attacks and honest variants together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.reports.model import CaseRecord, DeclaredCell, Report
from conformance.reports.verdict import Outcome, Reason

Change = Callable[[Report], Report]


def accelerator(**changes: Any) -> Change:
    return lambda report: replace(report, accelerator=replace(report.accelerator, **changes))


def run(**changes: Any) -> Change:
    return lambda report: replace(report, run=replace(report.run, **changes))


def invocation(**changes: Any) -> Change:
    return lambda report: run(invocation=replace(report.run.invocation, **changes))(report)


def typed(*words: str) -> Change:
    return lambda report: invocation(argv=(*report.run.invocation.argv, *words))(report)


def facts(**changes: Any) -> Change:
    """Change facts of the environment; None removes one."""

    def change(report: Report) -> Report:
        known = {**report.environment.facts, **changes}
        kept = {name: value for name, value in known.items() if value is not None}
        return replace(report, environment=replace(report.environment, facts=kept))

    return change


def claim(*cells: DeclaredCell) -> Change:
    return lambda report: replace(
        report, declaration=replace(report.declaration, cells=(*report.declaration.cells, *cells))
    )


def in_turn(*changes: Change) -> Change:
    def change(report: Report) -> Report:
        for each in changes:
            report = each(report)
        return report

    return change


def cases(matching: Callable[[CaseRecord], bool], limit: int | None = 1, **changes: Any) -> Change:
    """Change the first cases that match; all of them without a limit."""

    def change(report: Report) -> Report:
        chosen = [case.id for case in report.cases if matching(case)][:limit]
        assert chosen
        wanted = set(chosen)
        return replace(report, cases=tuple(replace(c, **changes) if c.id in wanted else c for c in report.cases))

    return change


def is_native(case: CaseRecord) -> bool:
    return case.reason is Reason.NATIVE and case.level != "core" and case.adaptive


def is_emulated(case: CaseRecord) -> bool:
    return case.reason is Reason.EMULATED


def is_undeclared(case: CaseRecord) -> bool:
    return case.reason is Reason.UNDECLARED


def is_unsupported(case: CaseRecord) -> bool:
    return case.reason is Reason.UNSUPPORTED


def is_operator(case: CaseRecord) -> bool:
    return case.area == "operators" and case.outcome is Outcome.PASS


def is_float32(case: CaseRecord) -> bool:
    return is_operator(case) and case.axes.get("dtype") == "float32"

"""``conformance explain``: describe a case with its verdict in a report, a reason, or a rule of lint or the gate."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UnknownName

if TYPE_CHECKING:
    from conformance.plan.bundled import BundledCase
    from conformance.reports.model import CaseRecord, Report

#: Cases of a report that are named for a reason.
_MOST_CASES = 5
_LINT_PAGE = "docs/declarations.md#lint"
SUMMARY = "Describe a case and its verdict in a report, a reason, or a rule of lint or the gate."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "case",
        metavar="NAME",
        help="a case id, such as accelerator.rng.state_roundtrip; a reason, such as stub; or a rule, such as L05",
    )
    parser.add_argument(
        "--report",
        metavar="PATH",
        type=Path,
        help="a report; its verdict on the case, or its cases of the reason, are printed too",
    )
    parser.add_argument(
        "--script",
        action="store_true",
        help="print a Python script that reproduces the failure without this package; for cells of operators",
    )

    parser.add_argument(
        "--accelerator",
        metavar="NAME",
        default="",
        help="the accelerator of --script (default: the report's, if it is a registered name)",
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.loading import load

    report = load(arguments.report) if arguments.report else None
    # A case of a report is never called like a reason or a rule: its id starts with an area and a dot.
    term = [] if arguments.script or "." in arguments.case else _term(arguments.case)
    if term:
        print("\n".join([*term, *_of_reason(arguments.case, report)]))
    elif arguments.script:
        print(_script(arguments.case, report, arguments.accelerator))
    else:
        print("\n".join(_lines(arguments.case, report)))
    return 0


def _term(name: str) -> list[str]:
    """Return the lines about a reason, or a rule of lint or the gate; empty if the name is none of these."""
    from conformance.accelerators.lint import LINT_RULES
    from conformance.reports.gate.rules import RULES
    from conformance.reports.verdict import Reason

    if name.upper() in LINT_RULES:
        rule = LINT_RULES[name.upper()]
        return [f"{rule.id} {rule.severity.value} of conformance lint", f"  {rule.summary}", f"  see {_LINT_PAGE}"]
    if name.upper() in RULES:
        gate = RULES[name.upper()]
        return [
            f"{gate.id} rule of conformance gate",
            f"  {gate.requirement}",
            f"  why: {gate.why}",
            f"  do: {gate.fix}",
        ]
    reason = next((reason for reason in Reason if reason.value == name.lower()), None)
    if reason is None:
        return []
    outcomes = " or ".join(outcome.value for outcome in reason.facts.outcomes)
    do = [f"  do: {reason.facts.fix}"] if reason.facts.fix else []
    return [f"{reason.value} reason of a {outcomes}", f"  {reason.facts.when}", *do]


def _of_reason(name: str, report: Report | None) -> list[str]:
    """Return a line with the cases of a report that ended with this reason; empty without a report or for a rule."""
    from conformance.reports.plain_text import one_line
    from conformance.reports.verdict import Reason

    if report is None or name.lower() not in {reason.value for reason in Reason}:
        return []
    found = [case.id for case in report.cases if case.reason.value == name.lower()]
    shown = ", ".join(map(one_line, found[:_MOST_CASES])) or "none"
    more = f" and {len(found) - _MOST_CASES} more" if len(found) > _MOST_CASES else ""
    return [f"  cases of {one_line(report.accelerator.name)} with this reason: {shown}{more}"]


def _script(id: str, report: Report | None, accelerator: str) -> str:
    from conformance.cli.script import script

    cases = {bundled.case.id: bundled.case for bundled in _bundled(id)}
    if id not in cases:
        raise _unknown(id, list(cases))
    return script(cases[id], report, accelerator)


def _lines(id: str, report: Report | None) -> Iterator[str]:
    """Yield the lines about the case. A case that is not bundled needs a verdict in the report."""
    verdict = _verdict(id, report)
    cases_of_area = _bundled(id)
    planned = next((bundled for bundled in cases_of_area if bundled.case.id == id), None)
    if planned is None and not verdict:
        raise _unknown(id, [bundled.case.id for bundled in cases_of_area])
    yield id
    if planned is not None:
        yield from _description(planned, report.run.invocation.seed if report else 0)
    yield from verdict


def _bundled(id: str) -> list[BundledCase]:
    """Return the cases of the id's area. Other areas are not imported."""
    from conformance.plan.bundled import area_names, bundled_cases

    area = id.split(".", 1)[0]
    return bundled_cases([area], deep=True) if area in area_names() else []


def _unknown(id: str, known: list[str]) -> UnknownName:
    """Return the error for an unknown id, about its area if that is unknown too."""
    from conformance.plan.bundled import area_names

    area = id.split(".", 1)[0]
    if not known and "." not in id:
        return UnknownName(
            "case, reason or rule", id, _terms(), "a case id starts with its area; see: conformance list"
        )
    if not known and area not in area_names():
        return UnknownName("area", area, area_names(), "a case id starts with its area; see: conformance list")
    return UnknownName("case", id, known, f"see: conformance list --area {area}")


def _terms() -> list[str]:
    """Return every reason and every id of a rule."""
    from conformance.accelerators.lint import LINT_RULES
    from conformance.reports.gate.rules import RULES
    from conformance.reports.verdict import Reason

    return [*(reason.value for reason in Reason), *LINT_RULES, *RULES]


def _description(planned: BundledCase, base_seed: int) -> Iterator[str]:
    """Yield the description of a bundled case, with its seed in a run with ``base_seed``."""
    from conformance.plan.case import seed_of

    case = planned.case
    yield textwrap.indent(planned.doc or "(no description)", "  ")
    yield ""
    yield f"  area {case.area} · tier {case.tier.value} · level {case.level.value}"
    if case.axes:
        yield "  axes " + ", ".join(f"{name} = {value}" for name, value in case.axes)
    yield f"  needs {', '.join(map(str, case.requires)) or 'nothing'}{_how_judged(planned)}"
    if note := case.planned.about_note:
        yield f"  {note}: counts in no percentage and no profile"
    yield f"  profiles {', '.join(_profiles(planned)) or 'none'}"
    yield f"  seed {seed_of(case.id, base_seed)} (base seed {base_seed}) · deadline {case.deadline:g} s"
    yield f"  source {planned.path}:{planned.line}"
    yield f"  run    pytest --accelerator=NAME --case '{case.id}' -n0"


def _how_judged(planned: BundledCase) -> str:
    return "; always runs, and is judged against the declaration" if planned.case.adaptive else ""


def _profiles(planned: BundledCase) -> list[str]:
    from conformance.reports.profiles import PROFILES, in_profile

    return [name for name in PROFILES if in_profile(name, planned.case.planned)]


def _verdict(id: str, report: Report | None) -> list[str]:
    """Return lines with the report's verdict on the case; empty without a report."""
    from conformance.reports.plain_text import one_line

    if report is None:
        return []
    found = next((case for case in report.cases if case.id == id), None)
    if found is not None:
        return ["", *_judged(found, report)]
    if any(planned.id == id for planned in report.accounting.unaccounted):
        progress = "it started and did not finish" if id in report.accounting.in_flight else "it did not start"
        return ["", f"  no verdict on {one_line(report.accelerator.name)}: {progress}"]
    return []


def _judged(case: CaseRecord, report: Report) -> Iterator[str]:
    """Yield the case's verdict in the report, with message, metrics and repro command."""
    from conformance.reports.plain_text import one_line, plain

    yield f"  {case.outcome.value} ({case.reason.value}) on {one_line(report.accelerator.name)} in {case.seconds:g} s"
    if case.message:
        yield textwrap.indent(plain(case.message), "    ")
    for name, value in case.metrics.items():
        yield f"    {one_line(name)} = {one_line(str(value))}"
    if case.repro:
        yield f"  repro: {one_line(case.repro)}"

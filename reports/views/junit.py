"""Report as JUnit XML: a suite for each area with facts as properties. Facts of a case are in its output.

The schemas of Jenkins and Surefire forbid properties of single cases, exponents in times, and a number of skips for the
whole document.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import junitparser

from conformance.reports.model import LONGEST_SECONDS, CaseRecord, Report
from conformance.reports.plain_text import one_line, plain
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome

SUMMARY = "JUnit XML"
FILE = "junit.xml"

#: Names of this suite's own lines. An axis of a report must not replace them.
_OWN = frozenset({"outcome", "reason", "tier", "level", "repro"})

# Any, because its classes are annotated only in part, which mypy refuses in strict code.
_xml: Any = junitparser


def render(report: Report, _width: int = 0) -> str:
    """Return the XML document. Cases without a verdict are errors, so that no reader takes them for passes."""
    document = _xml.JUnitXml("testsuites")
    document.name = f"conformance of {one_line(report.accelerator.name)}"
    for area, cases in sorted(_by_area(report).items()):
        document.append(_suite(report, area, cases))
    document.update_statistics()
    for element in (document._elem, *document._elem):
        element.set("time", _seconds(float(element.get("time") or 0)))
    document._elem.attrib.pop("skipped", None)
    stream = io.BytesIO()
    document.write(stream)
    return stream.getvalue().decode() + "\n"


def _by_area(report: Report) -> dict[str, list[PlannedCase]]:
    """Return all planned cases by area, also those without a verdict."""
    areas: dict[str, list[PlannedCase]] = defaultdict(list)
    for planned in (*report.cases, *report.accounting.unaccounted):
        areas[planned.area].append(planned)
    return areas


def _suite(report: Report, area: str, cases: list[PlannedCase]) -> Any:
    """Return the suite of one area, with the run's facts as properties."""
    suite = _xml.TestSuite(one_line(area))
    suite.timestamp = one_line(report.run.started)
    for name, value in _facts(report):
        suite.add_property(name, one_line(value))
    # In one call, because each append counts the whole suite again.
    suite.extend(_case(case) for case in cases)
    return suite


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the facts about the run that a reader of the XML needs."""
    yield "accelerator", report.accelerator.name
    yield "torch", report.accelerator.torch
    yield "suite", report.run.suite.version
    yield "manifest", report.run.suite.manifest_sha256
    yield "strictness", report.run.strictness


def _case(planned: PlannedCase) -> Any:
    """Return the test case of a planned case. One without a verdict is an error, not a failure."""
    subject = one_line(planned.id).split("[", 1)[0]
    element = _xml.TestCase(one_line(planned.id), classname=subject)
    if isinstance(planned, CaseRecord):
        element._elem.set("time", _seconds(planned.seconds))
        _add_result(element, planned)
        element.system_out = "\n".join(_facts_of(planned))
    else:
        element.append(_xml.Error("planned, but there is no verdict", "unaccounted"))
    return element


def _seconds(value: float) -> str:
    """Return a time without an exponent, between 0 and the longest time that views show."""
    return f"{min(max(value, 0.0), LONGEST_SECONDS):.6f}"


def _facts_of(case: CaseRecord) -> Iterator[str]:
    """Return everything that a reader may search for, as ``name: value`` lines."""
    yield f"outcome: {case.outcome.value}"
    yield f"reason: {case.reason.value}"
    found = {
        "tier": case.tier,
        "level": case.level,
        **{name: value for name, value in case.axes.items() if one_line(name).casefold() not in _OWN},
        **({"repro": case.repro} if case.repro else {}),
        **{f"metric.{name}": value for name, value in case.metrics.items()},
    }
    for name, value in found.items():
        yield f"{one_line(name)}: {one_line(str(value))}"


def _add_result(element: Any, case: CaseRecord) -> None:
    """Add the failure or skip of a case. A pass has no element in JUnit."""
    if case.outcome is Outcome.PASS:
        return
    kind = _xml.Skipped if case.outcome is Outcome.SKIP else _xml.Failure
    result = kind(one_line(case.message, 500) or case.reason.value, case.reason.value)
    if case.outcome is Outcome.FAIL:
        result.text = plain(case.message)
    element.append(result)

"""What a stranger's bytes reach: each target reads them as one kind of file, and may refuse them in one sentence only.

A target returns when the bytes were read or refused. Everything else it raises is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from conformance.base.errors import ConformanceError, JournalError
from conformance.reports import diff
from conformance.reports.gate import manifests
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.rules import decide
from conformance.reports.gate.views import FORMATS
from conformance.reports.json_files import inflated, parse_json
from conformance.reports.junit_import import _cases, _JUnitReader, area_of
from conformance.reports.model import Report
from conformance.reports.profiles import find_policy
from conformance.reports.report_json import from_json, to_json
from conformance.reports.views import all_views, packed
from conformance.reports.waivers.file import parse_waivers
from tests.reports.gate import world

NOW: Final = datetime(2026, 6, 1, tzinfo=timezone.utc)
MANIFEST: Final = world.manifest()
BASELINE: Final = world.honest("old", days=10)
WAIVERS: Final = (world.waiver("operators.*"), world.waiver("accelerator.stream"))
_LONGEST_SENTENCE: Final = 60_000


def report(data: bytes) -> None:
    """A report.json, packed or not, judged and compared."""
    _refusing(lambda: judge(from_json(parse_json(inflated(data, "fuzz"), "fuzz"), "fuzz")))


def value(document: Any) -> None:
    """The same, from a JSON value."""
    _refusing(lambda: judge(from_json(document, "fuzz")))


def judge(found: Report) -> Decision:
    """Everything that the gate does with a report that could be read."""
    policy = find_policy("training")
    decision = decide(GateEvidence(found, policy, NOW, MANIFEST, BASELINE, WAIVERS, None, "ab" * 32))
    for form in FORMATS.values():
        assert form(decision)
    assert decision.status in (0, 1)
    assert all("\n" not in one.sentence for one in decision.findings)
    diff.compare(BASELINE, found)
    return decision


def shown(document: Any) -> None:
    """A JSON value as a report, in every view; what is written is what was read."""

    def show() -> None:
        found = from_json(document, "fuzz")
        for view in all_views():
            view.render(found, 80).encode("utf-8", errors="replace")
        assert from_json(json.loads(to_json(found))) == found
        assert from_json(json.loads(packed.render(found))) == found

    _refusing(show)


def waivers(data: bytes) -> None:
    """A waiver file, with everything that is asked of a waiver."""

    def read() -> None:
        for one in parse_waivers(data, "fuzz"):
            list(one.faults(NOW.date()))
            one.covers("operators.add[float32-training]")

    _refusing(read)


def junit(data: bytes) -> None:
    """A JUnit file of another suite."""
    _refusing(lambda: list(_cases(_JUnitReader("fuzz").read(data), area_of("path"))))


def manifest(data: bytes) -> None:
    """A manifest, compressed or not."""

    def read() -> None:
        found = manifests.parse_manifest(inflated(data, "fuzz"), "fuzz")
        assert found.required("core") <= set(found.cases)

    _refusing(read)


def _refusing(action: Callable[[], Any]) -> None:
    try:
        action()
    except ConformanceError as error:
        refusal = error
    else:
        return
    assert isinstance(refusal, JournalError), refusal
    assert "\n" not in str(refusal)
    assert 0 < len(str(refusal)) < _LONGEST_SENTENCE


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "report": report,
    "waivers": waivers,
    "junit": junit,
    "manifest": manifest,
}

"""Import of JUnit XML from other suites as marked rows of a report.

The file is untrusted. It is read as a stream by expat, and only the cases are kept. A document type, and with it every
entity, is refused. Depth, length and number of cases are limited.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from xml.parsers import expat

from conformance.base.errors import JournalError, UsageError
from conformance.reports.json_files import read_capped
from conformance.reports.model import AcceleratorRecord, Accounting, CaseRecord, Report, Run, Suite, count_cases
from conformance.reports.plain_text import one_line, plain
from conformance.reports.redaction import message
from conformance.reports.verdict import Outcome, Reason

#: Tier and first part of the area of imported cases. It separates them from this suite's cases in every view.
IMPORTED: Final = "imported"
#: Limits of untrusted XML: test cases, depth of nesting, characters of a message.
MAX_CASES: Final = 100_000
_MAX_DEPTH: Final = 32
_MAX_TEXT: Final = 4_000
_RESULTS: Final = {
    "failure": (Outcome.FAIL, Reason.WRONG),
    "error": (Outcome.FAIL, Reason.RAISED),
    "skipped": (Outcome.SKIP, Reason.ENVIRONMENT),
}


@dataclass
class _ImportedCase:
    """Test case of the file."""

    suite: str
    attributes: dict[str, str]
    kind: str = ""
    words: list[str] = field(default_factory=list)


#: Function that names the area of a case.
AreaOf = Callable[[_ImportedCase], str]


def area_of(rule: str) -> AreaOf:
    """Return the function for a rule: ``path`` (last folder or package), ``suite`` (test suite), or one fixed name."""
    if rule == "path":
        return lambda found: _folder(found.attributes.get("file") or found.attributes.get("classname", ""))
    if rule == "suite":
        return lambda found: found.suite
    return lambda _: rule


def _folder(place: str) -> str:
    """Return ``ops`` for ``tests/unit/ops/test_adam.py`` and for ``tests.unit.ops.test_adam.TestAdam``."""
    parts = [part for part in re.split(r"[/\\.]", place) if part and part != "py"]
    folders = [part for part in parts if not part.startswith(("test_", "Test"))]
    return folders[-1] if folders else ""


def import_junit(path: Path, area: AreaOf, accelerator: str) -> Report:
    """Return a report with the cases of the file; JournalError says in one sentence why it cannot be read."""
    data = read_capped(path)
    cases = _unique(_cases(_JUnitReader(str(path)).read(data), area))
    digest = hashlib.sha256(data).hexdigest()
    run = Run(f"{IMPORTED}-{digest[:12]}", "", Suite(IMPORTED, digest, len(cases)))
    note = f"{len(cases)} cases were imported from {one_line(path.name, 100)}; another suite judged them."
    report = Report(run, AcceleratorRecord(accelerator), notes=(note,), cases=cases)
    return replace(report, totals=count_cases(cases, Accounting()))


def add_rows(report: Report, imported: Report) -> Report:
    """Return the report with the imported rows after its own. The gate judges the report without them."""
    known = {case.id for case in report.cases}
    twice = next((case.id for case in imported.cases if case.id in known), None)
    if twice:
        raise UsageError(f"the report has the case {one_line(twice, 120)!r} already; it was imported before.")
    cases = (*report.cases, *imported.cases)
    suite = replace(report.run.suite, cases=report.run.suite.cases + len(imported.cases))
    return replace(
        report,
        run=replace(report.run, suite=suite),
        totals=count_cases(cases, report.accounting),
        notes=(*report.notes, *imported.notes),
        cases=cases,
    )


def without_rows(report: Report) -> Report:
    """Return the report as it was before foreign rows were added: nothing of ours is judged by them.

    Totals that are not those of the cases stay as they are, so that the gate still sees them.
    """
    if not any(is_foreign(group.area) for group in report.groups):
        return report
    cases = tuple(case for case in report.cases if not (case.tier == IMPORTED and is_foreign(case.area)))
    suite = replace(report.run.suite, cases=report.run.suite.cases - (len(report.cases) - len(cases)))
    totals = count_cases(cases, report.accounting) if report.totals == report.counts else report.totals
    return replace(report, run=replace(report.run, suite=suite), totals=totals, cases=cases)


def is_foreign(area: str) -> bool:
    """Return whether the rows of an area are of another suite."""
    return area.partition(".")[0] == IMPORTED


def _cases(found: list[_ImportedCase], area: AreaOf) -> Iterator[CaseRecord]:
    """Yield a record for each imported test, marked as imported in its id, area and tier."""
    for found_case in found:
        name = _word(area(found_case)) or "other"
        subject = _word(found_case.attributes.get("classname", "").rpartition(".")[2])
        case = one_line(found_case.attributes.get("name", ""), 200) or "unnamed"
        outcome, reason = _RESULTS.get(found_case.kind, (Outcome.PASS, Reason.NATIVE))
        yield CaseRecord(
            id=".".join(part for part in (IMPORTED, name, subject, case) if part),
            area=f"{IMPORTED}.{name}",
            tier=IMPORTED,
            outcome=outcome,
            reason=reason,
            message=message("".join(found_case.words)),
            seconds=_seconds(found_case.attributes.get("time", "")),
        )


def _word(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", one_line(text, 80)).strip("_")


def _seconds(text: str) -> float:
    """Return a duration in seconds, or 0.0 for text that is no plausible number."""
    try:
        # Some writers separate thousands: "1,234.5".
        value = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value < 1e9 else 0.0


def _unique(cases: Iterator[CaseRecord]) -> tuple[CaseRecord, ...]:
    """Return the cases with unique ids. Other suites repeat names, such as for reruns: repetitions get a number."""
    seen: dict[str, int] = {}
    found: dict[str, CaseRecord] = {}
    for case in cases:
        seen[case.id] = number = seen.get(case.id, 0) + 1
        id = case.id if number == 1 else f"{case.id}#{number}"
        while id in found:
            id += "#"
        found[id] = replace(case, id=id)
    return tuple(found.values())


class _JUnitReader:
    """Collector of the test cases of a document."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[_ImportedCase] = []
        self._suites: list[str] = []
        self._open: list[str] = []
        self._case: _ImportedCase | None = None

    def read(self, data: bytes) -> list[_ImportedCase]:
        """Return the test cases of the document. Raises ``JournalError`` if it is not valid JUnit XML."""
        parser: Any = expat.ParserCreate()
        parser.buffer_text = True
        # Without a DOCTYPE there are no entities, which could expand to gigabytes or read files.
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(data, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise JournalError(f"{self.where} is not valid XML: {error}.") from None
        return self.found

    def _refuse_doctype(self, *_: object) -> None:
        raise JournalError(f"{self.where} has a document type, which no test report needs; entities are not expanded.")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        """Note an opened element. Raises ``JournalError`` for a foreign or too deeply nested document."""
        if not self._open and name not in ("testsuites", "testsuite"):
            raise JournalError(f"{self.where} is not JUnit XML: it begins with <{one_line(name, 40)}>.")
        if len(self._open) >= _MAX_DEPTH:
            raise JournalError(f"{self.where} is nested too deeply to be JUnit XML.")
        self._open.append(name)
        if name == "testsuite":
            self._suites.append(attributes.get("name", ""))
        elif name == "testcase":
            self._begin(attributes)
        elif self._case is not None and name in _RESULTS and not self._case.kind:
            self._case.kind = name
            self._characters(attributes.get("message", "") + "\n")

    def _begin(self, attributes: dict[str, str]) -> None:
        """Begin a test case, with the attributes that are imported. Raises ``JournalError`` beyond ``MAX_CASES``."""
        if len(self.found) >= MAX_CASES:
            raise JournalError(f"{self.where} has more than {MAX_CASES} cases.")
        known: dict[str, str] = {
            name: attributes[name][:1_000] for name in ("name", "classname", "file", "time") if name in attributes
        }
        self._case = _ImportedCase(self._suites[-1] if self._suites else "", known)
        self.found.append(self._case)

    def _characters(self, text: str) -> None:
        """Add text to the message of a failed or skipped test, up to ``_MAX_TEXT`` characters."""
        case = self._case
        if case is None or not case.kind or self._open[-1] not in _RESULTS:
            return
        room = _MAX_TEXT - sum(map(len, case.words))
        if room > 0:
            case.words.append(plain(text[:room]))

    def _end(self, name: str) -> None:
        """Note a closed element; a testcase or testsuite ends with it."""
        self._open.pop()
        if name == "testsuite":
            self._suites.pop()
        elif name == "testcase":
            self._case = None

"""Report for a terminal: failures by cause and differences from the declaration, then matrix and conclusion.

The last lines are those that a terminal shows when the run has ended, so the conclusion stands there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tabulate import tabulate

from conformance.reports.breadth import KERNEL_ORIGINS
from conformance.reports.causes import Cause, causes
from conformance.reports.declaration.claims import check_claims
from conformance.reports.matrix import (
    TERMINAL_LAYOUTS,
    Difference,
    Matrix,
    MatrixRow,
    differences,
    failures,
    make_matrix,
    metric_rows,
    reason_counts,
)
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line, plain
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import PROFILES, contained
from conformance.reports.totals import Counts

SUMMARY = "for terminals"

#: Rows that a terminal shows; report.json has all of them.
MAX_CAUSES: Final = 8
MAX_DIFFERENCES: Final = 8
MAX_IDS: Final = 10
_MAX_LACKS: Final = 3
#: Lines of a message where there are at most so many causes. With more causes, each message gets one line.
_MESSAGE_LINES: Final = ((3, 6), (5, 3))
_DOT: Final = " · "
LEGEND: Final = (
    "I inference, or no mode · T training · – no dtype · verified: passes of the planned cases that are claimed"
)
#: Lines of a row. ``pass`` is always shown, the others if they are not zero.
_LINES: Final = (("pass", "passed"), ("skip", "skipped"), ("fail", "failed"), ("lost", "lost"))


def render(report: Report, width: int = 120) -> str:
    """Return the whole view, with a line end at its end."""
    return body(report, width) + "\n"


def body(report: Report, width: int = 120, causes_shown: int = MAX_CAUSES) -> str:
    """Return the view without a line end at its end. Control characters of the report are removed."""
    sections = (
        _title(report, width),
        _workloads(report, width),
        _differences(differences(report), width),
        _failures(causes(failures(report)), width, causes_shown),
        _accounting(report, width),
        matrix_table(report, width),
        _kernels(report),
        _reasons(report, width),
        _conclusion(report, width),
    )
    return "\n\n".join(section for section in sections if section)


def _title(report: Report, width: int) -> str:
    """Return the run's name, versions, hash and seed, wrapped to ``width`` columns."""
    run, accelerator = report.run, report.accelerator
    facts = (
        accelerator.name,
        f"torch {accelerator.torch or '?'}",
        f"suite {run.suite.version or '?'}",
        f"manifest {run.suite.manifest_sha256[:12] or '?'}",
        f"strictness {run.strictness}",
        f"seed {run.invocation.seed}",
    )
    return _wrapped("", map(one_line, facts), width)


def matrix_table(report: Report, width: int = 120) -> str:
    """Return the matrix in the most detailed layout that fits: areas down, dtype and mode across.

    An area takes one line for each outcome that it has.
    """
    tables = [_table(make_matrix(report, columns)) for columns in TERMINAL_LAYOUTS]
    table = next((table for table in tables if _width(table) <= width), tables[-1])
    return f"{table}\n{_wrapped('', LEGEND.split(_DOT), width)}"


def _table(matrix: Matrix) -> str:
    """Return the matrix of areas and dtypes as a table."""
    titles = ["area", "", *matrix.columns, "total", "verified"]
    # Titles are passed as rows: tabulate pads real headers by two columns each, and 120 columns would not suffice.
    heads = [row for row in zip(*([*title.split("\n"), ""][:2] for title in titles), strict=True) if any(row)]
    body = [line for row in (*matrix.rows, matrix.totals) for line in _row_lines(row, matrix.columns)]
    align = ["left", "left", *["right"] * (len(titles) - 2)]
    lines = tabulate([*heads, *body], tablefmt="plain", colalign=align, disable_numparse=True).splitlines()
    rule = "─" * max(map(len, lines))
    return "\n".join([*lines[: len(heads)], rule, *lines[len(heads) :]])


def _width(table: str) -> int:
    return max(map(len, table.splitlines()))


def _row_lines(row: MatrixRow, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the lines of an area: ``pass`` always, the other outcomes where there are any."""
    for label, name in _LINES:
        number = getattr(row.total, name)
        if not number and label != "pass":
            continue
        first = label == "pass"
        cells = [_cell(row.cells.get(title), name) for title in columns]
        yield [one_line(row.area, 18) if first else "", label, *cells, str(number), row.total.verified if first else ""]


def _cell(counts: Counts | None, name: str) -> str:
    """Return a count. A dot stands for a zero, and nothing for a combination without cases."""
    if counts is None:
        return ""
    number = getattr(counts, name)
    return str(number) if number or (name == "passed" and counts.planned) else "·"


def _reasons(report: Report, width: int) -> str:
    found = [f"{outcome.value} {reason.value} {number}" for outcome, reason, number in reason_counts(report)]
    return _wrapped("reasons: ", found, width)


def _kernels(report: Report) -> str:
    """Return a table of whose kernels ran in the passed cases of each area, or nothing if no area has kernels."""
    rows = [
        [one_line(area, 18), *(str(counts[origin]) for origin in KERNEL_ORIGINS)]
        for area, counts in report.kernel_origins.items()
    ]
    if not rows:
        return ""
    align = ["left", *["right"] * len(KERNEL_ORIGINS)]
    return tabulate(rows, ["kernels of", *KERNEL_ORIGINS], "plain", colalign=align, disable_numparse=True)


def _wrapped(label: str, parts: Iterable[str], width: int) -> str:
    """Return ``label`` and the parts with dots between them, wrapped between parts; nothing without parts."""
    lines: list[list[str]] = []
    for part in parts:
        if lines and len(label) + len(_DOT.join([*lines[-1], part])) <= width:
            lines[-1].append(part)
        else:
            lines.append([part])
    indented = f"\n{' ' * len(label)}".join(map(_DOT.join, lines))
    return label + indented if lines else ""


def _workloads(report: Report, width: int) -> str:
    """Return the table of the workloads' metrics, or nothing without any. Columns that do not fit are left out."""
    titles, rows = metric_rows(report.cases)
    if not rows:
        return ""
    clean = [[one_line(value, 60) for value in row] for row in rows]
    tables = [_numbers(titles[:n], [row[:n] for row in clean]) for n in range(len(titles), 1, -1)]
    shown = next((table for table in tables if _width(table) <= width), tables[-1])
    return shown if shown == tables[0] else f"{shown}\nall numbers: matrix.md"


def _numbers(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of names and numbers."""
    align = ["left", *["right"] * (len(titles) - 1)]
    return tabulate(rows, titles, tablefmt="simple", colalign=align, disable_numparse=True)


def _differences(found: Sequence[Difference], width: int) -> str:
    """Return the first differences that are no failures, one in a line. The others stand among the failures."""
    notes = [difference for difference in found if not difference.fails]
    if not notes:
        return ""
    rows = [_difference_line(difference, width) for difference in notes[:MAX_DIFFERENCES]]
    head = f"declared and observed differ in {_cases(len(notes))} that did not fail:"
    return "\n".join([head, *rows, *_more(len(notes), len(rows))])


def _difference_line(difference: Difference, width: int) -> str:
    """Return a difference in one line that is cut to ``width`` columns."""
    # Most messages begin with the cell, which then stands there once.
    about = "" if difference.message.startswith(difference.cell) else f"{difference.cell}: "
    # The two columns of the indent are taken from the width before the line is cut.
    return "  " + one_line(f"{difference.reason.value} · {about}{difference.message}", width - 2)


def _failures(found: Sequence[Cause], width: int, shown: int) -> str:
    """Return the blocks of the ``shown`` most frequent causes, and counts of the others."""
    if not found:
        return ""
    number = sum(len(cause.cases) for cause in found)
    same = f", for {len(found)} {'cause' if len(found) == 1 else 'causes'}" if len(found) < number else ""
    most = next((lines for causes, lines in _MESSAGE_LINES if len(found) <= causes), 1)
    blocks = ["\n".join(_cause_lines(cause, width, most)) for cause in found[:shown]]
    return "\n".join([f"{_cases(number)} failed{same}:", *blocks, *_other_causes(found[shown:])])


def _cause_lines(cause: Cause, width: int, most: int) -> Iterator[str]:
    """Yield the lines of a cause: id and reason, the first lines of the message, the repro command of a case."""
    others = f" and {len(cause.cases) - 1} more" if len(cause.cases) > 1 else ""
    yield f"  {one_line(cause.first.id)}{others} · {cause.reason.value}"
    lines = [line.rstrip() for line in plain(cause.first.message).expandtabs(4).splitlines() if line.strip()]
    for line in lines[:most]:
        yield "    " + (line if len(line) <= width - 4 else line[: width - 5] + "…")
    if most < len(lines) and most > 1:
        yield f"    … {len(lines) - most} more lines in report.json"
    if cause.first.repro:
        # Never cut, because it is there to be copied.
        yield f"    repro: {one_line(cause.first.repro)}"


def _other_causes(found: Sequence[Cause]) -> list[str]:
    """Return a line with the counts of the causes that are not shown, by reason."""
    if not found:
        return []
    counts: Counter[str] = Counter()
    for cause in found:
        counts[cause.reason.value] += len(cause.cases)
    reasons = ", ".join(f"{reason} {number}" for reason, number in counts.most_common())
    return [f"  … and {_cases(counts.total())} of {len(found)} other causes: {reasons}"]


def _more(number: int, shown: int) -> list[str]:
    return [f"  … and {number - shown} more; all are in report.json"] if number > shown else []


def _accounting(report: Report, width: int) -> str:
    """Return the cases that lack a verdict or were not planned, torn lines, idle areas and notes."""
    accounting = report.accounting
    parts = (
        _ids("planned without a verdict", [planned.id for planned in _flying_first(report)], width),
        _ids("more than one verdict", accounting.duplicates, width),
        _ids("verdicts of unplanned cases", accounting.unknown, width),
        f"journal lines torn by a kill: {accounting.torn_lines}" if accounting.torn_lines else "",
        _ids("areas with claims where nothing ran", report.idle_areas, width),
        "\n".join(one_line(f"note: {note}", width) for note in report.notes[:MAX_IDS]),
    )
    return "\n".join(part for part in parts if part)


def _flying_first(report: Report) -> list[PlannedCase]:
    """Return the unaccounted cases. Those that had begun come first, because one of them ended the run."""
    flying = frozenset(report.accounting.in_flight)
    return sorted(report.accounting.unaccounted, key=lambda planned: planned.id not in flying)


def _ids(label: str, ids: Sequence[str], width: int) -> str:
    """Return a labelled list of the first ids, or nothing if there are none."""
    if not ids:
        return ""
    shown = [f"  {one_line(id, width - 2)}" for id in ids[:MAX_IDS]]
    rest = [f"  … and {len(ids) - len(shown)} more"] if len(ids) > len(shown) else []
    return "\n".join([f"{label}: {len(ids)}", *shown, *rest])


def _claims(report: Report, width: int) -> str:
    """Return how many claims a passing case exercised; nothing for a narrowed run, which does not exercise all."""
    check = check_claims(report)
    if not check.total or report.run.invocation.selection:
        return ""
    asked = f" in a run of profile {one_line(report.run.profile)}" if report.run.profile else ""
    headline = f"claims: {len(check.verified)} of {check.total} declared claims have a passing case{asked}"
    if not check.unverified or report.run.profile not in ("", "full"):
        return headline  # only a full run has a case for each claim
    rest = len(check.unverified) - MAX_IDS
    shown = [*map(one_line, check.unverified[:MAX_IDS]), *([f"… and {rest} more"] if rest > 0 else [])]
    return "\n".join([headline, _wrapped("  not verified: ", shown, width)])


def _conclusion(report: Report, width: int) -> str:
    """Return the last lines: the counts of cases and of claims, and the profile that the run has reached."""
    counts = report.counts
    accounted = f"planned {counts.planned}, accounted {counts.planned - counts.lost}"
    outcomes = f"pass {counts.passed}, skip {counts.skipped}, fail {counts.failed}"
    lines = [
        f"{accounted}: {outcomes}",
        f"cases: {counts.verified} of the claimed cases passed",
        f"also passed, in no percentage: {_cases(counts.aside)} not about the device" if counts.aside else "",
        _claims(report, width),
        f"profile: {_profile(report)}",
        *_narrow(report, width),
    ]
    return "\n".join(line for line in lines if line)


def _profile(report: Report) -> str:
    """Return the profile that the run has reached, or why there is none, and the breadth."""
    if report.run.invocation.selection and not report.badge:
        return _partial(report)
    return f"{_without_badge(report)}{report.badge or 'none is fully green'} · {report.breadth}"


def _without_badge(report: Report) -> str:
    """Return the result of the run's profile if that profile earns no badge, else nothing."""
    name = report.run.profile
    if name not in PROFILES or PROFILES[name].badge:
        return ""
    green = any(result.green for result in report.profile_results if result.name == name)
    return f"{name} is {'green' if green else 'not green'}; reached: "


def _narrow(report: Report, width: int) -> Iterator[str]:
    """Yield what the next profile lacks in breadth, if the run has not reached it for that reason alone.

    A run of one profile has no cases of larger ones, and says nothing about them.
    """
    if report.run.invocation.selection:
        return
    asked = contained(report.run.profile) if report.run.profile in PROFILES else PROFILES
    for result in report.profile_results:
        if (
            result.name in asked
            and result.lacks
            and not result.failed
            and result.verified == result.claimed
            and not result.green
        ):
            shown = [one_line(text) for text in result.lacks[:_MAX_LACKS]]
            more = [f"{len(result.lacks) - _MAX_LACKS} more"] if len(result.lacks) > _MAX_LACKS else []
            yield _wrapped(f"  {result.name} needs more claims: ", [*shown, *more], width)
            return


def _partial(report: Report) -> str:
    return f"not judged, the run was narrowed by {' '.join(map(one_line, report.run.invocation.selection))}"


def _cases(number: int) -> str:
    return f"{number} case" if number == 1 else f"{number} cases"

"""Figures in README and docs: counts of the released manifest and the registries, the published run, measured times.

Each function returns one generated part of a page; ``PARTS`` says where it stands. ``python -m tests.docs.renew``
writes all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Final

from benchmarks.record import read
from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.registry import names
from conformance.base.options import OPTIONS, Group
from conformance.cli.main import commands
from conformance.kernels.specifications import specifications
from conformance.reports.gate.manifests import PINNED, RELEASES, Manifest, released
from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import PROFILES
from conformance.reports.views import all_views, text
from tests.faults.fault import FAMILIES as FAULT_FAMILIES
from tests.faults.reported import results as reported
from tests.standard import score as standard_score

from .pages import DOCS, README, ROOT, table

#: The published run of the CPU, which the README's terminal shows.
RUN: Final = ROOT / "reports" / "published" / "runs" / "cpu.json.gz"
_FAULT_FILES: Final = ("measured.json", "measured_conditions.json", "measured_graphs.json", "measured_pairs.json")
#: Scores of generated faults: of kernels and derivatives, under conditions, of compiled code, and of time, state and
#: collectives.
MEASURED_FAULTS: Final = tuple(ROOT / "tests" / "faults" / name for name in _FAULT_FILES)
WIDTH: Final = 86
#: Areas in the README's terminal; the others are in reports/published/matrix.md.
SHOWN: Final = ("accelerator", "operators", "total")


@cache
def manifest() -> Manifest:
    """Return the complete manifest of the newest suite."""
    found = released(RELEASES[-1], PINNED)
    assert found is not None
    return found


@cache
def published() -> Report:
    """Return the published run of the CPU."""
    return load(RUN)


def planned_cases() -> list[PlannedCase]:
    """Return every released case."""
    return list(manifest().cases.values())


def cases_by_area() -> Mapping[str, int]:
    """Return the number of released cases of each area."""
    return Counter(case.area for case in planned_cases())


def counts() -> str:
    """Return the README's lines about the size of the suite."""
    operators = {case.id.split("[")[0] for case in planned_cases() if case.area == "operators"}
    return (
        f"Suite {manifest().suite} with torch {manifest().torch}: {len(manifest().cases):,} cases in "
        f"{len(cases_by_area())} areas. They test {len(VOCABULARY)} capabilities, {len(operators)} operators and "
        f"{len(specifications())} kernels.\n{len(names())} accelerators are built in: "
        f"{', '.join(f'`{name}`' for name in names())}."
    )


def options() -> str:
    """Return the table of the options."""
    rows = ((f"`{f'{option.name} {option.metavar}'.strip()}`", option.docs) for option in OPTIONS)
    return table(("option", "meaning"), rows)


def option_and_command_names() -> str:
    """Return the README's lists of the options and the subcommands."""
    listed = {f"**{group.value}**": [option.name for option in OPTIONS if option.group is group] for group in Group}
    listed["**Commands** of `conformance`"] = list(commands())
    return "\n".join(f"* {what}: {', '.join(f'`{name}`' for name in names)}" for what, names in listed.items())


def command_summaries() -> str:
    """Return the table of the subcommands."""
    rows = [f"| `conformance {name}` | {summary} |" for name, summary in commands().items()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def formats() -> str:
    """Return the table of the views."""
    rows = [f"| `{view.name}` | {view.summary} | {f'`{view.file}`' if view.file else ''} |" for view in all_views()]
    return "\n".join(["| format | content | file in the report folder |", "|---|---|---|", *rows])


def session() -> str:
    """Return the README's terminal: some rows of the published matrix of the CPU, and the last lines."""
    lines = text.render(published(), WIDTH).splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
    body = {area: _rows(lines[rule + 1 :], area) for area in SHOWN}
    # Metrics and notes stand between the title and the matrix.
    head = max(number for number, line in enumerate(lines[:rule]) if not line)
    shown = [
        *lines[: lines.index("")],
        *lines[head + 1 : rule + 1],
        *(row for area in SHOWN[:-1] for row in body[area]),
        "…",
        *body["total"],
    ]
    last = [line for line in lines if line.startswith(("cases:", "also passed", "claims:", "planned ", "profile:"))]
    command = "$ pytest --accelerator=cpu --waivers=accelerators/waivers/cpu.toml"
    return "\n".join(["```console", command, *shown, *last, "```"])


def _rows(lines: list[str], area: str) -> list[str]:
    """Return the lines of one area: the line that begins with its name, and the indented lines after it."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{area} "))
    after = next(number for number, line in enumerate(lines[start + 1 :], start + 1) if not line.startswith(" "))
    return lines[start:after]


def profiles() -> str:
    """Return the table of the profiles."""
    rows = [
        f"| `{profile.name}` | {', '.join(f'`{parent}`' for parent in profile.parents) or '–'} | "
        f"{len(manifest().required(profile.name)):,} | {profile.doc} |"
        for profile in PROFILES.values()
    ]
    return "\n".join(["| profile | contains | cases | meaning |", "|---|---|--:|---|", *rows])


def measurements() -> str:
    """Return the table of measured rows, and the machines that they were measured on."""
    headers = ("metric", "peer", "here", "goal", "ratio", "date", "commit")
    rows = read()
    shown = table(headers, ([row[name] for name in headers] for row in rows))
    return "\n".join([shown, "", *dict.fromkeys(row["machine"] for row in rows)])


def generated_faults() -> str:
    """Return the scores of generated faults by family, from the committed measurements."""
    rows = []
    for file in MEASURED_FAULTS:
        measured = json.loads(file.read_text(encoding="utf-8"))
        for family, found in measured["families"].items():
            drawn = found["public"]["live"] + found["unproven"]
            rows.append(
                (
                    f"{family} {FAULT_FAMILIES[family]}",
                    drawn,
                    f"{found['unproven']} ({found['unproven'] / drawn:.0%})",
                    _share(found["reached"]),
                    _share(found["public"]),
                )
            )
    headers = ("family", "drawn", "unproven", "over reached", "over the public API")
    return table(headers, rows)


def reported_bugs() -> str:
    """Return the scores of planted public reports, from the committed measurement."""
    measured = json.loads(reported.MEASURED.read_text(encoding="utf-8"))
    return reported.summary([reported.Found.of(row) for row in measured], by_backend=False)


def _share(score: dict[str, float]) -> str:
    interval = f"{score['low']:.0%} to {score['high']:.0%}"
    return f"{score['killed']} of {score['live']}: {score['share']:.0%} ({interval})"


#: Page, name of a generated part, and the function that makes it.
PARTS: Final = (
    (README, "figures", counts),
    (README, "session", session),
    (README, "commands", option_and_command_names),
    (DOCS / "running.md", "options", options),
    (DOCS / "running.md", "commands", command_summaries),
    (DOCS / "ci.md", "formats", formats),
    (DOCS / "verdicts.md", "profiles", profiles),
    (DOCS / "detection.md", "benchmarks", measurements),
    (DOCS / "detection.md", "faults", generated_faults),
    (DOCS / "detection.md", "reported", reported_bugs),
    (DOCS / "detection.md", "standard", standard_score.table),
)

"""Page of the areas: what DeepSpeed tests under a name, what stands here, what does not, and why.

``python -m tests.docs.renew`` writes it, with all other generated parts. The facts about DeepSpeed are in areas.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.case import Case
from conformance.plan import area_names, bundled_cases
from tests.docs.figures import _about

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "areas.md"
HEAD = """# Areas

    conformance list --area AREA                 # the cases of an area

For each folder of DeepSpeed's unit tests at commit edaa7221: what it tests, what stands here, what does not, and why.
Areas that only this suite has are at the end. This page is made by `python -m tests.docs.renew` from the suite and
`tests/docs/areas.toml`. [Known gaps](known-gaps.md) has what no area tests.
"""


def facts() -> dict[str, Any]:
    """Return what areas.toml says about each folder of DeepSpeed's tests."""
    return tomllib.loads((Path(__file__).parent / "areas.toml").read_text(encoding="utf-8"))


def checks_of(cases: Iterator[Case] | list[Case]) -> dict[str, list[str]]:
    """Return the checks of each area, in alphabetical order: ids without the area and without axes."""
    found: dict[str, set[str]] = {}
    for case in cases:
        found.setdefault(case.area, set()).add(case.id.split("[")[0].partition(".")[2])
    return {area: sorted(names) for area, names in found.items()}


def page() -> str:
    """Return the whole page for the installed suite."""
    checks, known = checks_of([planned.case for planned in bundled_cases()]), facts()
    parts = [HEAD]
    for area in sorted(known):
        parts += _section(area, checks.get(area, []), known[area])
    parts += ["## Only here", "", "| area | what the cases check |", "|---|---|"]
    parts += [f"| `{area}` | {_about(area)} |" for area in area_names() if area not in known]
    return "\n".join(parts) + "\n"


def _section(area: str, checks: list[str], known: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {area}"
    yield ""
    yield f"**DeepSpeed**, {known['functions']} test functions: {known['deepspeed']}"
    yield ""
    if checks:
        yield f"**Here**, {len(checks)} checks: {_about(area)} {_listed(checks)}"
    else:
        yield "**Here**: no area of this name."
    yield ""
    if covered := known.get("covered"):
        yield "| subject | cases |"
        yield "|---|---|"
        for subject, ids in covered:
            yield f"| {subject} | {', '.join(f'`{id}`' for id in ids)} |"
        yield ""
    yield "| not tested | why |"
    yield "|---|---|"
    for what, why in known["missing"]:
        yield f"| {what} | {why} |"
    yield ""


def _listed(checks: list[str]) -> str:
    """Return the first names, by their first part if there are many."""
    names = checks if len(checks) <= 40 else list(dict.fromkeys(name.partition(".")[0] for name in checks))
    return ", ".join(f"`{name}`" for name in names) + "."

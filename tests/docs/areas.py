"""Tables of the areas: cases, what DeepSpeed tests under the same name, what does not stand here, and why.

``python -m tests.docs.renew`` writes them, with all other generated parts. The facts about DeepSpeed are in areas.toml.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from conformance.plan.bundled import area_names
from conformance.plan.case import Case
from tests.docs.figures import cases_by_area, planned_cases
from tests.docs.pages import DOCS, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE: Final = DOCS / "areas.md"


def facts() -> dict[str, Any]:
    """Return what areas.toml says about each folder of DeepSpeed's tests."""
    return tomllib.loads((Path(__file__).parent / "areas.toml").read_text(encoding="utf-8"))


def checks_of(cases: Iterable[Case]) -> dict[str, list[str]]:
    """Return the checks of each area, in alphabetical order: ids without the area and without axes."""
    found: dict[str, set[str]] = {}
    for case in cases:
        found.setdefault(case.area, set()).add(case.id.split("[")[0].partition(".")[2])
    return {area: sorted(names) for area, names in found.items()}


def areas() -> str:
    """Return the table of the areas. The sentence about an area is the docstring of its package."""
    on_ranks = Counter(case.area for case in planned_cases() if case.world_size)
    rows = [
        f"| `{area}` | {cases_by_area()[area]:,} | {on_ranks[area] or ''} | {_about(area)} |" for area in area_names()
    ]
    return "\n".join(["| area | cases | on ranks | what the cases check |", "|---|--:|--:|---|", *rows])


def _about(area: str) -> str:
    """Return the first line of the area's docstring without its title, or an empty string."""
    doc = importlib.import_module(f"conformance.suites.{area}").__doc__ or ""
    sentence = doc.strip().partition("\n")[0].split(": ", 1)[-1]
    return sentence[:1].upper() + sentence[1:]


def deepspeed() -> str:
    """Return a table of the folders of DeepSpeed's tests, and below it what is not tested here, and why."""
    tested = table(
        ("area", "DeepSpeed's test functions", "what they test"),
        ((f"`{area}`", known["functions"], known["deepspeed"]) for area, known in sorted(facts().items())),
    )
    areas_of: dict[tuple[str, str], list[str]] = {}
    for area, known in sorted(facts().items()):
        for what, why in known["missing"]:
            areas_of.setdefault((what, why), []).append(f"`{area}`")
    missing = table(("area", "not tested here", "why"), ((", ".join(named), *pair) for pair, named in areas_of.items()))
    return f"{tested}\n\n{missing}"


#: Page, name of a generated part, and the function that makes it.
PARTS: Final = ((PAGE, "areas", areas), (PAGE, "deepspeed", deepspeed))

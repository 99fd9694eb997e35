"""Tables of capabilities without a case and kernels without a specification, for docs/known-gaps.md.

``python -m tests.docs.renew`` writes them, with all other generated parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.accelerators.capabilities import VOCABULARY
from conformance.case import Case
from conformance.kernels.specifications import specifications
from conformance.plan import area_names, bundled_cases
from tests.docs.entry_points import unspecified

PAGE = Path(__file__).parents[2] / "docs" / "known-gaps.md"
BEGIN, END = "<!-- gaps:begin -->", "<!-- gaps:end -->"
#: A probe tests a capability only briefly, so it does not count as a case that requires it.
PROBES = "capabilities"


def table(cases: Iterable[Case], areas: Iterable[str]) -> str:
    """Return the generated part of the page."""
    known = list(cases)
    probed = {cell.subject for case in known if case.area == PROBES for cell in case.requires}
    tested = {cell.subject for case in known if case.area != PROBES for cell in case.requires}
    rows = [(name, "a probe" if name in probed else "nothing") for name in VOCABULARY if name not in tested]
    empty = sorted(set(areas) - {case.area for case in known})
    return "\n".join(
        [
            f"{len(rows)} of {len(VOCABULARY)} capabilities have no case that requires them:" if rows else "",
            "",
            "| capability | tested by |",
            "|---|---|",
            *(f"| `{name}` | {instead} |" for name, instead in rows),
            "",
            f"Areas without a case: {', '.join(f'`{name}`' for name in empty) or 'none'}.",
            "",
            *kernels(),
        ]
    )


def kernels() -> list[str]:
    """Return the lines about entry points that training engines load and that have no specification."""
    there = [(kernel.builder, name) for kernel in specifications() for name in (*kernel.attributes, *kernel.companions)]
    missing = list(unspecified(there))
    return [
        f"{sum(len(names) for _, names, _ in missing)} entry points of operator builders have no specification:",
        "",
        "| builder | entry points | why |",
        "|---|---|---|",
        *(f"| `{builder}` | {', '.join(f'`{name}`' for name in names)} | {why} |" for builder, names, why in missing),
    ]


def with_table(page: str, generated: str) -> str:
    """Return the page with its generated part in place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{generated}\n{END}{rest.split(END)[1]}"


def current() -> str:
    """Return the generated part for the installed suite."""
    return table((planned.case for planned in bundled_cases()), area_names())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), current()), encoding="utf-8")

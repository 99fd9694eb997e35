"""Tables of the measured defects: a summary in docs/detection.md, and every mutant in tests/defects/detection.md.

They are made from the catalogue and measured.json. ``python -m tests.defects.table`` renews them, as does
``python -m tests.docs.renew``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import bench, measuring
from .catalogue import MUTANTS as ALL
from .matrix import Check, Standing, checks
from .measuring import Measured, Result
from .mutant import How, Mutant
from .required import FAMILIES, LINES
from .survivors import SURVIVORS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "detection.md"
TABLES = HERE / "detection.md"
MEASURED = HERE / "measured.json"
BEGIN, END = "<!-- detection:begin -->", "<!-- detection:end -->"
#: How many catching checks a row names.
_SHOWN = 3
#: Mutants of the simulated accelerator, and of objects that stand in for one.
MUTANTS = tuple(mutant for mutant in ALL if not mutant.stand_in)
STAND_INS = tuple(mutant for mutant in ALL if mutant.stand_in)


def standings(measured: Measured) -> list[Check]:
    return checks(measured, STAND_INS)


def tables(measured: Measured) -> str:
    """Return the page with every mutant, every family and every check."""
    by_name = measured.by_name
    parts = (
        "# Mutants and checks",
        "    python -m tests.defects.run --out tests/defects/measured.json && python -m tests.defects.table",
        "Everything on this page is generated. [What the suite detects](../../docs/detection.md) explains it.",
        "## Mutants",
        _mutants(by_name),
        "## Survivors",
        _survivors(by_name),
        "## Defects that the catalogue must contain",
        _lines(),
        "## Families",
        _families(),
        "## Checks and their mutants",
        _standings(standings(measured)),
        "## Defects of stand-in objects",
        _stand_ins(by_name),
    )
    return "\n\n".join(parts) + "\n"


def mutant_row(mutant: Mutant, result: Result | None) -> str:
    by = ", ".join(f"`{name}`" for name in _shown(_catching(mutant, result)))
    killed = "yes" if by else "**no**"
    star = " ★" if mutant.peer_misses else ""
    return f"| {mutant.name}{star} | {mutant.family} | {mutant.fault.precedent} | {by or '–'} | {killed} |"


def _catching(mutant: Mutant, result: Result | None) -> list[str]:
    return bench.functions_of([red.case for red in result.catching(mutant)]) if result else []


def _shown(names: Sequence[str]) -> list[str]:
    return [*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])]


def _mutants(results: dict[str, Result]) -> str:
    head = ["| mutant | family | precedent | caught by | killed |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(mutant_row(mutant, results.get(mutant.name)) for mutant in MUTANTS)])


def summary(measured: Measured) -> str:
    """Return the totals, as a list."""
    results = measured.by_name
    killed = [mutant for mutant in MUTANTS if _catching(mutant, results.get(mutant.name))]
    accusing = [m for m in MUTANTS if m.name in results and results[m.name].accused(m)]
    starred = [mutant for mutant in MUTANTS if mutant.peer_misses]
    healthy = results[measuring.HEALTHY]
    alive = sum(mutant in killed for mutant in starred)
    through = sum(mutant.how is How.PYTEST for mutant in MUTANTS)
    families = len({mutant.family for mutant in MUTANTS})
    caught = sum(bool(_catching(mutant, results.get(mutant.name))) for mutant in STAND_INS)
    share = len(killed) / len(MUTANTS)
    lines = (
        f"**{len(killed)} of {len(MUTANTS)} mutants are killed** ({share:.1%}), in {families} families.",
        f"{through} of them were tested with a complete `pytest --accelerator=…` run.",
        f"TorchCTS 0.4.1 does not detect the mutants marked ★. Here {alive} of {len(starred)} are killed.",
        f"Cases that fail on the healthy accelerator: {len(healthy.reds)} of {healthy.ran}.",
        f"Mutants that fail a case which does not depend on the broken part: {len(accusing)}.",
        f"{caught} of {len(STAND_INS)} defects of stand-in objects are killed.",
    )
    return "\n".join(f"* {line}" for line in lines)


def _survivors(results: dict[str, Result]) -> str:
    alive = [mutant.name for mutant in MUTANTS if not _catching(mutant, results.get(mutant.name))]
    if not alive:
        return "None."
    return "\n".join(f"* {name}: {SURVIVORS.get(name, 'not explained')}" for name in alive)


def _lines() -> str:
    head = ["| defect seen elsewhere | mutants | waits for |", "|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {one.what} | {'; '.join(one.mutants) or '–'} | {one.waits or '–'} |" for one in LINES)]
    )


def _families() -> str:
    counted = Counter(mutant.family for mutant in MUTANTS)
    names = [*FAMILIES, *sorted(set(counted) - set(FAMILIES))]
    head = ["| family | mutants | waits for |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {name} | {counted[name] or '–'} | {FAMILIES.get(name) or '–'} |" for name in names)])


def _standings(rows: Sequence[Check]) -> str:
    counted = Counter(row.standing for row in rows)
    total = ", ".join(f"{counted[standing]} {_word(standing)}" for standing in Standing)
    areas = " and ".join(f"`{area}`" for area in measuring.MATRIX_AREAS)
    parts = (
        f"The areas {areas} have {len(rows)} checks; compared with the others of the area, {total}.",
        _list("No mutant and no other defect", (row.name for row in rows if row.standing is Standing.NONE)),
        _list("Defects of stand-in objects only", (row.name for row in rows if row.standing is Standing.OBJECT)),
        *_shared([row for row in rows if row.standing is Standing.SHARES]),
    )
    return "\n\n".join(parts)


def _shared(rows: Sequence[Check]) -> tuple[str, ...]:
    if not rows:
        return ("Sharing all their mutants with other checks: none.",)
    table = "| check | caught together with | others that see all of them |\n|---|---|---|\n"
    return ("Sharing their mutants with other checks:", table + "\n".join(map(_sharing, rows)))


def _word(standing: Standing) -> str:
    return {
        Standing.ALONE: "have a mutant that only they catch",
        Standing.SHARES: "share their mutants",
        Standing.OBJECT: "have defects of stand-in objects only",
        Standing.NONE: "have none",
    }[standing]


def _list(title: str, names: Iterable[str]) -> str:
    return f"{title}: " + (", ".join(f"`{name}`" for name in names) or "none") + "."


def _sharing(row: Check) -> str:
    companions = ", ".join(f"`{name}`" for name in _shown(row.companions)) or "–"
    return f"| `{row.name}` | {'; '.join(_shown(row.shared))} | {companions} |"


def stand_in_row(mutant: Mutant, result: Result | None) -> str:
    assert mutant.stand_in
    case = mutant.fault.caught_by
    title = mutant.name.removesuffix(f": {case}")
    return f"| {title} | {mutant.stand_in.name} | `{case}` | {'yes' if _catching(mutant, result) else '**no**'} |"


def _stand_ins(results: dict[str, Result]) -> str:
    head = ["| defect | in | case | killed |", "|---|---|---|---|"]
    return "\n".join([*head, *(stand_in_row(mutant, results.get(mutant.name)) for mutant in STAND_INS)])


def page(measured: Measured) -> str:
    """Return docs/detection.md with its generated part in place."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{summary(measured)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(measuring.read(MEASURED)), encoding="utf-8")
    TABLES.write_text(tables(measuring.read(MEASURED)), encoding="utf-8")

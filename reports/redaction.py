"""Redaction: an allow-list of facts about the machine, and texts without absolute paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from conformance.base.options import OPTIONS
from conformance.reports.calls import LONGEST_SCRIPT, SCRIPT
from conformance.reports.plain_text import plain, without_folders, without_repro_lines

#: Facts that help to repeat a result and name no person and no machine. Package versions are added.
ENVIRONMENT_FACTS: Final = ("python", "system", "machine", "cores", "memory_gib", "cpu", "compiler")
#: Options of this suite, of pytest and of its plugins that leave planned cases out.
SELECTING: Final = (
    *(option.name for option in OPTIONS if option.narrows),
    "-k",
    "-m",
    "--deselect",
    "--ignore",
    "--lf",
    "--last-failed",
    "--ff",
    "--sw",
    "--stepwise",
    "--sw-skip",
    "--stepwise-skip",
    "--splits",
    "--ignore-glob",
)
MAX_MESSAGE: Final = 4_000
#: Facts that one case or environment may have.
MAX_FACTS: Final = 200


def message(text: Any) -> str:
    """Return the message for a report: plain, without folders, at most 4,000 characters, cut in the middle."""
    clean = without_repro_lines(without_folders(plain(str(text))))
    if len(clean) <= MAX_MESSAGE:
        return clean
    return f"{clean[: MAX_MESSAGE // 2]}\n[…]\n{clean[-MAX_MESSAGE // 2 :]}"


def environment(found: Mapping[str, Any]) -> dict[str, float | int | str]:
    """Return the allowed facts, and the versions of packages."""
    packages = found.get("packages")
    known = {name: found[name] for name in ENVIRONMENT_FACTS if found.get(name) is not None}
    return flat_facts({**known, **(packages if isinstance(packages, Mapping) else {})})


def flat_facts(found: Mapping[Any, Any]) -> dict[str, float | int | str]:
    """Return numbers and short strings, sorted by name."""
    names = sorted(found, key=str)[:MAX_FACTS]
    return {plain(str(name))[:100]: _script(found) if name == SCRIPT else flat(found[name]) for name in names}


def _script(found: Mapping[Any, Any]) -> str:
    """Return the script of a failed call; it keeps its lines."""
    return without_folders(plain(str(found[SCRIPT])))[:LONGEST_SCRIPT]


def flat(value: Any) -> float | int | str:
    """Return a number that JSON can hold as it is, and anything else as a short string without folders."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return without_folders(plain(str(value)))[:400]


def selection(argv: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments that narrowed the plan, without their values."""
    names = (word.split("=", 1)[0] for word in argv)
    found = {name for name in names if name in SELECTING or (name[:2] in ("-k", "-m") and not name.startswith("--"))}
    return tuple(sorted(found))


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def word(value: Any) -> str:
    return "" if value is None else plain(str(value))[:1_000]


def whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else 0


def strings(value: Any) -> tuple[str, ...]:
    return tuple(without_folders(word(item)) for item in value) if isinstance(value, (list, tuple)) else ()

"""Names that a claim of a family may have: operators of PyTorch, kernels and workloads of this suite.

The names are data, so that a declaration is read without torch. ``conformance manifest --release`` writes them from the
plan of the installed torch, one list for each series of torch.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from conformance.accelerators.capabilities import FAMILIES
from conformance.base.errors import DeclarationError

FILE: Final = Path(__file__).with_name("subjects.json")
#: Names in a suggestion.
_SUGGESTED: Final = 3
#: Least similarity of a suggestion, as difflib counts it.
_CLOSE: Final = 0.6


def check_subject(subject: str) -> None:
    """Raise DeclarationError if the subject belongs to a family, and is no name or pattern of one of its members."""
    family, dot, name = subject.partition(".")
    if not dot or family not in FAMILIES or name == "*" or not _is_listed(family):
        return
    known = names(family)
    if name not in known and not ("*" in name and fnmatch.filter(known, name)):
        raise DeclarationError(unknown_text(family, name, known))


def unknown_text(family: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name, with the nearest names."""
    kind = family.removesuffix("s")
    said = f"no {kind} matches '{family}.{name}'." if "*" in name else f"there is no {kind} '{name}'."
    near = nearest(name, known)
    hint = f"\n  did you mean {' or '.join(repr(other) for other in near)}?" if near else ""
    return f"{said}{hint}\n  all names: conformance list --area {_AREAS[family]}"


#: Areas whose cases show the names of a family.
_AREAS: Final = {"operators": "operators", "workloads": "workloads", "kernels": "ops"}


def nearest(name: str, known: Iterable[str]) -> Sequence[str]:
    """Return the forms of a name, and those that are most similar as a whole, or in their last part.

    ``div`` has the form ``div.floor_rounding``, and ``gelus`` is near ``nn.functional.gelu``.
    """
    wanted = name.rstrip("*").rstrip(".")
    if "*" in name:
        # A pattern such as "linlag.*" has the mistake in the part before the star.
        known = {f"{other.rpartition('.')[0]}" for other in known if "." in other}
        return [f"{prefix}.*" for prefix in difflib.get_close_matches(wanted, known, n=_SUGGESTED, cutoff=_CLOSE)]
    whole = list(known)
    last: dict[str, list[str]] = {}
    for other in sorted(whole):
        last.setdefault(other.rpartition(".")[2], []).append(other)
    close = difflib.get_close_matches(wanted, whole, n=_SUGGESTED, cutoff=_CLOSE)
    by_last = difflib.get_close_matches(wanted.rpartition(".")[2], last, n=_SUGGESTED, cutoff=_CLOSE)
    forms = sorted(other for other in whole if other.startswith(f"{wanted}."))
    found = [*forms, *close, *(other for part in by_last for other in last[part])]
    return list(dict.fromkeys(found))[:_SUGGESTED]


@functools.cache
def names(family: str) -> frozenset[str]:
    """Return the members of a family, of all listed series of torch."""
    return frozenset(name for lists in _read().values() for name in lists.get(family, ()))


def _is_listed(family: str) -> bool:
    """Return whether unknown names are errors: PyTorch's operators are known for the listed series of torch only."""
    return family != "operators" or _installed_series() in (None, *_read())


@functools.cache
def _installed_series() -> str | None:
    """Return major.minor of the installed torch, or None. Imports nothing."""
    try:
        match = re.match(r"\d+\.\d+", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return None
    return match[0] if match else None


@functools.cache
def _read() -> Mapping[str, Mapping[str, Sequence[str]]]:
    found: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def names_in(cells: Iterable[str]) -> dict[str, list[str]]:
    """Return the members of each family that these cells name, sorted."""
    subjects = {cell.partition("[")[0] for cell in cells}
    return {family: sorted(s.partition(".")[2] for s in subjects if s.startswith(f"{family}.")) for family in FAMILIES}


def dump(cells: Mapping[str, Iterable[str]]) -> str:
    """Return the text of the file for the cells of every series of torch."""
    lists = {series: names_in(required) for series, required in cells.items()}
    return json.dumps(dict(sorted(lists.items())), indent=0) + "\n"

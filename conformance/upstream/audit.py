"""What each entry of a skip list hides, and whether the cases say that the device can do it now."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from conformance.accelerators.capabilities import DTYPES

from .evidence import Evidence, Standing, Variant, dtypes_of, operators, standing_of
from .skip_lists import Entry

#: Dtypes at the end of a test's name.
_DTYPE_NAMES = (*DTYPES, "complex32", "uint16", "uint32", "uint64")
#: Letters of a part of a name that is looked for inside the names of operators. Shorter ones are in most of them.
_LEAST_PART = 5
_MOST_PATTERN = 300


class State(Enum):
    """Class of an entry, and what to do with it."""

    STALE = "stale"
    NEEDED = "needed"
    DEAD = "dead"
    NOT_OURS = "not ours"
    UNKNOWN = "unknown"


#: What each class means, for people.
MEANING: Mapping[State, str] = {
    State.STALE: "the cases say that the device can do it now: try without the entry",
    State.NEEDED: "a case fails, or the device refuses it",
    State.DEAD: "it matches nothing of this torch: delete it",
    State.NOT_OURS: "no case is about it",
    State.UNKNOWN: "cases are about it, and the report has none with a result",
}


@dataclass(frozen=True)
class Audited:
    """An entry, what it hides, and its class. ``hides`` counts tests, or operators in a dtype if no names are known."""

    entry: Entry
    state: State
    hides: int
    why: str = ""


def audit(
    entries: Iterable[Entry], evidence: Mapping[Variant, Evidence], device_type: str, names: Sequence[str] = ()
) -> list[Audited]:
    """Return each entry with its class. ``names`` are names of PyTorch's tests, ``Class.test``, if they are known."""
    return [_audited(entry, evidence, device_type, names) for entry in entries]


def _audited(entry: Entry, evidence: Mapping[Variant, Evidence], device_type: str, names: Sequence[str]) -> Audited:
    hidden = [name for name in names if _matches(entry, name)]
    variants = _variants(entry, device_type)
    if entry.test_file and not entry.test_file.endswith(".py"):
        return Audited(entry, State.DEAD, 0, f"no test file is called {entry.test_file}")
    if entry.operator and not variants:
        return Audited(entry, State.DEAD, 0, f"torch has no operator or dtype of that name: {entry.text}")
    if names and not hidden and (entry.name or entry.test_class):
        return Audited(entry, State.DEAD, 0, f"no one of {len(names)} tests has that name")
    count = len(hidden) if names and hidden else len(variants)
    if not variants:
        return Audited(entry, State.NOT_OURS, count, "it names no operator of this torch")
    if entry.allows:
        return Audited(entry, State.NOT_OURS, 0, "it allows an operator and hides none")
    found = standing_of(evidence, variants)
    state = {
        Standing.VERIFIED: State.STALE,
        Standing.FAILING: State.NEEDED,
        Standing.DENIED: State.NEEDED,
        Standing.UNKNOWN: State.UNKNOWN,
    }[found.standing]
    return Audited(entry, state, count, found.why)


def _matches(entry: Entry, name: str) -> bool:
    """Return whether an entry hides a test ``Class.test``. Lists without patterns are substrings, as in pytest -k."""
    test_class, _, test = name.rpartition(".")
    if entry.test_class and not test_class.startswith(entry.test_class):
        return False
    if not entry.name:
        return bool(entry.test_class)
    if not entry.is_pattern:
        # PyTorch excludes a generic test by its whole name; the device follows behind it.
        return test.startswith(entry.name) if entry.test_class else entry.name in test
    pattern = _compiled(entry.name)
    matched = pattern is not None and pattern.match(test) is not None
    return matched and (not entry.dtypes or test.endswith(entry.dtypes))


@functools.cache
def _compiled(text: str) -> re.Pattern[str] | None:
    """Return a pattern of a list; None for one that is invalid, or that may take for ever."""
    if len(text) > _MOST_PATTERN or re.search(r"[+*}]\)?[+*{]", text):
        return None
    try:
        return re.compile(text)
    except re.error:
        return None


@functools.cache
def _test_endings(device_type: str) -> dict[str, Variant]:
    """Return how the names of operator tests end, ``_abs_sim_float32``, with the operator and dtype behind each."""
    return {
        f"_{name.replace('.', '_').replace('-', '_')}_{device_type}_{dtype}": (name, dtype)
        for name in operators()
        for dtype in dtypes_of(name, device_type)
    }


def _variants(entry: Entry, device_type: str) -> list[Variant]:
    """Return the operators in dtypes that an entry is about."""
    if entry.operator:
        name = entry.operator if entry.operator in operators() else entry.operator.replace("_", ".")
        known = dtypes_of(name, device_type) if name in operators() else []
        return [(name, dtype) for dtype in known if not entry.dtypes or dtype in entry.dtypes]
    if not entry.name:
        return []
    found = [variant for ending, variant in _test_endings(device_type).items() if _names(entry.name, ending)]
    if not found and not entry.is_pattern and not entry.test_class and len(entry.name) >= _LEAST_PART:
        # An entry is a part of a name: "histogramdd" hides every test of that operator.
        return [variant for ending, variant in _test_endings(device_type).items() if entry.name in ending]
    longest = max((len(name) for name, _ in found), default=0)
    # "test_x_scatter_add_sim_float32" ends in the tests of scatter_add and of add, and is about the longer one.
    return [variant for variant in found if len(variant[0]) == longest]


def _names(text: str, ending: str) -> bool:
    """Return whether an entry such as ``test_out_mean_xpu_float32`` or ``test_out_mean_xpu`` has this ending."""
    return text.endswith(ending) or (text.endswith(ending.rpartition("_")[0]) and not text.endswith(_DTYPE_NAMES))


def counts(found: Iterable[Audited]) -> Counter[State]:
    return Counter(audited.state for audited in found)

"""What each entry of a skip list hides, and whether the cases say that the device can do it now."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from conformance.accelerators.capabilities import DTYPES

from .evidence import Evidence, Standing, Variant, dtypes_of, operators, standing_of
from .skip_lists import Entry

_ANY_DTYPE = "|".join((*DTYPES, "complex32", "uint16", "uint32", "uint64"))
#: Two texts of a list without a comma between them: ``test_a_xpu_float32test_b_xpu``.
_GLUED = re.compile(rf"(?:{_ANY_DTYPE})test_")
#: Dtypes of both operands at the end of a test's name.
_TWO_DTYPES = re.compile(rf"({_ANY_DTYPE})_({_ANY_DTYPE})")
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
    by_test = defaultdict(list)
    for name in names:
        by_test[name.rpartition(".")[2]].append(name)
    found = []
    for entry in entries:
        # Lists of whole names may have tens of thousands.
        candidates = by_test.get(entry.name, []) if entry.is_whole else names
        hidden = sum(_matches(entry, name, device_type) for name in candidates)
        found.append(_audited(entry, evidence, device_type, hidden if names else None))
    return found


def _audited(entry: Entry, evidence: Mapping[Variant, Evidence], device_type: str, hidden: int | None) -> Audited:
    """Return the class of an entry; ``hidden`` is the number of tests that it hides, if their names are known."""
    variants = _variants(entry, device_type)
    if entry.test_file and not entry.test_file.endswith(".py"):
        return Audited(entry, State.DEAD, 0, f"no test file is called {entry.test_file}")
    if entry.operator and not variants:
        return Audited(entry, State.DEAD, 0, f"torch has no operator or dtype of that name: {entry.text}")
    if hidden == 0 and (entry.name or entry.test_class):
        return Audited(entry, State.DEAD, 0, "none of the named tests has that name")
    if not entry.is_pattern and _GLUED.search(entry.name):
        return Audited(entry, State.DEAD, 0, "two names without a comma between them are one name, which no test has")
    count = hidden or len(variants)
    if not variants:
        return Audited(entry, State.NOT_OURS, count, _not_ours(entry, device_type))
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


def _not_ours(entry: Entry, device_type: str) -> str:
    """Return why no case is about an entry."""
    if not entry.name:
        return "it is about a file or a class, and names no operator"
    if operator := operator_of(entry, device_type):
        return f"torch's database has no test of {operator[0]} in {operator[1]} on {device_type}"
    return f"its name does not end in an operator on {device_type}"


def _matches(entry: Entry, name: str, device_type: str) -> bool:
    """Return whether an entry hides a test ``Class.test``. Lists without patterns are substrings, as in pytest -k."""
    test_class, _, test = name.rpartition(".")
    if entry.test_class and not _is_class(entry.test_class, test_class, device_type):
        return False
    if not entry.name:
        return bool(entry.test_class)
    if entry.is_whole:
        return test == entry.name
    if not entry.is_pattern:
        # PyTorch excludes a generic test by its whole name; the device follows behind it.
        return f"{test}_".startswith(f"{entry.name}_") if entry.test_class else entry.name in test
    pattern = _compiled(entry.name)
    matched = pattern is not None and pattern.match(test) is not None
    return matched and (not entry.dtypes or test.endswith(entry.dtypes))


@functools.cache
def _is_class(listed: str, test_class: str, device_type: str) -> bool:
    """Return whether a class of tests is the listed one, with or without its device. ``*`` stands for any letters."""
    names = {test_class, test_class.removesuffix(device_type.upper())}
    # A list may call an out-of-tree device by the name that it has in torch before it is renamed.
    wanted = {listed, listed.removesuffix("PRIVATEUSE1")}
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in wanted)


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
def _by_ending() -> dict[str, str]:
    """Return the operators by the middle of their tests' names: ``_nn_functional_relu``."""
    return {f"_{_flat(name)}": name for name in operators()}


@functools.cache
def _endings(device_type: str) -> dict[str, Variant]:
    """Return how the names of operator tests end, ``_abs_sim_float32``, with the operator and dtype behind each."""
    return {
        f"_{_flat(name)}_{device_type}_{dtype}": (name, dtype)
        for name in operators()
        for dtype in dtypes_of(name, device_type)
    }


@functools.cache
def _by_short_name() -> dict[str, str]:
    """Return the operators by names that lists give them: ``div_floor_rounding``, or ``divfloor_rounding`` for MPS."""
    glued = {info.name + info.variant_test_name: name for name, info in operators().items()}
    return glued | {name.replace(".", "_"): name for name in operators()}


def _flat(operator: str) -> str:
    return operator.replace(".", "_").replace("-", "_")


def _variants(entry: Entry, device_type: str) -> list[Variant]:
    """Return the operators in dtypes that an entry is about."""
    if entry.operator:
        name = entry.operator if entry.operator in operators() else _by_short_name().get(entry.operator, "")
        known = dtypes_of(name, device_type) if name else []
        return [(name, dtype) for dtype in known if not entry.dtypes or dtype in entry.dtypes]
    if not re.fullmatch(r"[\w:]+", entry.name):
        return []
    if operator := operator_of(entry, device_type):
        name, ending = operator
        return [(name, dtype) for dtype in dtypes_of(name, device_type) if _has_dtype(entry, dtype, ending)]
    if not entry.is_pattern and not entry.test_class and len(entry.name) >= _LEAST_PART:
        # An entry is a part of a name: "histogramdd" hides every test of that operator.
        return [variant for ending, variant in _endings(device_type).items() if entry.name in ending]
    return []


def operator_of(entry: Entry, device_type: str) -> tuple[str, str] | None:
    """Return the operator that a test's name is about, and what is behind the device: its dtype, or a part of it."""
    head, device, behind = entry.name.rpartition(f"_{device_type}")
    if not device:
        # Without a device, only a name in its namespace is no chance: test_out_nn_functional_relu.
        found = _longest(entry.name) or ""
        return (found, "") if "." in found else None
    if behind and not behind.startswith("_"):
        return None
    found = _longest(head) or ""
    return (found, behind.removeprefix("_")) if found else None


def _longest(head: str) -> str | None:
    """Return the operator at the end: ``test_x_scatter_add`` is about scatter_add, and not about add."""
    starts = (number for number, letter in enumerate(head) if letter == "_")
    return next((found for start in starts if (found := _by_ending().get(head[start:]))), None)


def _has_dtype(entry: Entry, dtype: str, ending: str) -> bool:
    """Return whether an entry is about a dtype. A part of a name may end within the dtype: ``_xpu_int``."""
    both = _TWO_DTYPES.fullmatch(ending)
    is_part = dtype.startswith(ending) and not entry.test_class
    named = dtype in both.groups() if both else not ending or dtype == ending or is_part
    return named and (not entry.dtypes or dtype in entry.dtypes)


def counts(found: Iterable[Audited]) -> Counter[State]:
    return Counter(audited.state for audited in found)

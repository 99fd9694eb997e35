"""Columns are read as their values are: the quick way and the one that names what is wrong agree about everything."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.base.errors import JournalError
from conformance.reports import reading
from conformance.reports.model import CaseRecord
from conformance.reports.reading import InvalidValue, _reader_of, read
from conformance.reports.verdict import Outcome, Reason


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    name: str
    size: float = 0.0


@dataclass(frozen=True)
class Row:
    id: str
    colour: Colour
    count: int = 0
    flag: bool = False
    seconds: float = 1.5
    note: str | None = None
    axes: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.id == "forbidden":
            raise ValueError("an id cannot be forbidden")


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...] = ()


WORDS = st.sampled_from(["", "a", "red", "blue", "forbidden", "x" * 20_001])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([2**63, 2**64, 10**400]), st.floats(), st.booleans())
ODD = st.one_of(st.none(), WORDS, NUMBERS, st.lists(WORDS, max_size=2), st.dictionaries(WORDS, NUMBERS, max_size=2))
GOOD = {
    "id": st.sampled_from(["a", "b"]),
    "colour": st.sampled_from(["red", "blue"]),
    "count": st.integers(-3, 3),
    "flag": st.booleans(),
    "seconds": st.one_of(st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False)),
    "note": st.one_of(st.none(), st.just("said")),
    "axes": st.dictionaries(st.sampled_from("ab"), st.just("x"), max_size=2),
    "metrics": st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 2.5, "three"]), max_size=2),
    "needs": st.lists(st.just("cell"), max_size=2),
    "parts": st.lists(st.fixed_dictionaries({"name": st.just("p")}, optional={"size": st.just(2)}), max_size=2),
}


@st.composite
def tables(draw: st.DrawFn) -> list[Any]:
    """Rows that are mostly right; now and then one member is whatever it likes, or the row is none."""
    optional = {name: one for name, one in GOOD.items() if name not in ("id", "colour")}
    rows = draw(
        st.lists(st.fixed_dictionaries({"id": GOOD["id"], "colour": GOOD["colour"]}, optional=optional), max_size=4)
    )
    if rows and draw(st.booleans()):
        place = draw(st.integers(0, len(rows) - 1))
        name = draw(st.sampled_from([*GOOD, "unknown", None]))
        rows[place] = draw(ODD) if name is None else {**rows[place], name: draw(ODD)}
    return rows


@settings(max_examples=600, deadline=None)
@given(rows=tables())
@example(rows=[{"id": "a", "colour": "red"}, {"id": "forbidden", "colour": "red"}])
@example(rows=[{"id": "a", "colour": "red", "flag": False}, {"id": "a", "colour": "red", "flag": 0}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": float("nan")}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": True}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": 2**64, "n": 1}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": -(2**64), "n": 1}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": float("nan"), "n": 2**64}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": float("inf"), "n": 1}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": 1e308, "n": 1.5e308}}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"m": 10**400, "n": 1.5}}])
@example(rows=[{"id": "a", "colour": "red", "seconds": float("inf")}])
@example(rows=[{"id": "a", "colour": "red", "metrics": {"x" * 20_001: 1}}])
@example(rows=[{"id": "a", "colour": "red", "axes": {str(n): "x" for n in range(257)}}])
def test_a_column_is_read_as_its_values_are(rows: list[Any]) -> None:
    untouched = copy.deepcopy(rows)
    singly, sentence = _one_by_one(rows)
    together, other_sentence = _together(rows)

    assert (together, other_sentence) == (singly, sentence)
    assert _types(together) == _types(singly)
    assert repr(rows) == repr(untouched), "what was given to be read was changed"


@settings(max_examples=200, deadline=None)
@given(rows=tables())
@example(rows=[*[{"id": "a", "colour": "red"}] * 4, {"id": "a", "colour": "green"}])
def test_a_long_list_is_read_in_parts(rows: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_TOGETHER", 2)

        assert _together(rows) == _one_by_one(rows)


@pytest.mark.parametrize("place", [0, 3, 7])
def test_an_impossible_verdict_is_found_among_possible_ones(place: int) -> None:
    rows: list[Any] = [{"id": f"{n}", "area": "a", "outcome": "skip", "reason": "unsupported"} for n in range(8)]
    rows[place]["outcome"] = "pass"

    with pytest.raises(JournalError, match=rf"^t\[{place}\]: a verdict cannot be pass with reason unsupported\.$"):
        read(tuple[CaseRecord, ...], rows, "t")


def test_a_verdict_that_is_half_left_out_is_checked_with_its_default() -> None:
    with pytest.raises(JournalError, match=r"^t\[1\]: a verdict cannot be fail with reason native\.$"):
        read(tuple[CaseRecord, ...], [{"id": "a", "area": "a"}, {"id": "b", "area": "a", "outcome": "fail"}], "t")


def test_the_check_of_a_case_reads_no_member_but_those_it_names() -> None:
    fake = SimpleNamespace(outcome=Outcome.PASS, reason=Reason.NATIVE)
    assert set(vars(fake)) == set(CaseRecord.checked_together)

    CaseRecord.__post_init__(fake)  # type: ignore[arg-type]


def _one_by_one(rows: list[Any]) -> tuple[list[Row], str]:
    read_so_far, reader = [], _reader_of(Row)
    for place, row in enumerate(rows):
        try:
            read_so_far.append(reader.one(row))
        except InvalidValue as fault:
            return [], fault.sentence(f"table.rows[{place}]")
    return read_so_far, ""


def _together(rows: list[Any]) -> tuple[list[Row], str]:
    try:
        return list(read(Table, {"rows": rows}, "table").rows), ""
    except JournalError as error:
        return [], str(error)


def _types(rows: list[Row]) -> list[list[type]]:
    return [[type(getattr(row, one.name)) for one in fields(row)] for row in rows]


def test_members_that_were_left_out_have_their_defaults() -> None:
    short, long = read(
        Table, {"rows": [{"id": "a", "colour": "red"}, {"id": "b", "colour": "blue", "count": 3}]}, "t"
    ).rows

    assert (short, long) == (Row("a", Colour.RED), Row("b", Colour.BLUE, 3))
    assert short.axes == {}
    assert short.axes is not long.axes


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"rows": {}}, r"t\.rows must be a list, not \{\}\."),
        ({"rows": [{"id": "a"}]}, r"t\.rows\[0\] lacks the key 'colour'\."),
        (
            {"rows": [{"id": "a", "colour": "red"}, {"id": "a", "colour": "green"}]},
            r"t\.rows\[1\]\.colour must be one of",
        ),
        (
            {"rows": [{"id": "a", "colour": "red", "parts": [{"name": "p"}, {"name": 1}]}]},
            r"rows\[0\]\.parts\[1\]\.name",
        ),
        ({"rows": [{"id": "a", "colour": "red", "axes": {"dtype": 1}}]}, r"rows\[0\]\.axes\.dtype must be a string"),
    ],
)
def test_the_sentence_names_the_place(value: Any, sentence: str) -> None:
    with pytest.raises(JournalError, match=sentence):
        read(Table, value, "t")

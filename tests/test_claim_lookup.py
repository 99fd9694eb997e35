"""The one claim lookup, held against a naive model."""

from __future__ import annotations

import fnmatch
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.base.claim_lookup import CONTRADICTORY, NOT_DECLARED, UNDECLARED, ClaimLookup, FoundClaim
from conformance.base.errors import DeclarationError
from tests.call_count import calls_of

Row = tuple[str, str, str]

YES, NO, HOST = ("supported", "native"), ("unsupported", "hardware"), ("supported", "host")
PARTS = st.sampled_from(["a", "b", "ab", "add", "linalg", "*", "a*", "*d", "l*g"])
SUBJECTS = st.lists(PARTS, min_size=1, max_size=3).map(".".join)
AXES = st.sampled_from(["", "[float32]", "[float32-training]", "[training]"])
CELLS = st.builds(str.__add__, SUBJECTS, AXES)
ROWS = st.lists(st.tuples(CELLS, st.sampled_from([YES, NO, HOST])).map(lambda row: (row[0], *row[1])), max_size=8)
ASKED = st.builds(
    str.__add__, st.lists(PARTS.filter(lambda p: "*" not in p), min_size=1, max_size=3).map(".".join), AXES
)


def model(rows: list[Row], cell: str, in_reference: bool) -> tuple[str, str]:
    """Return state and detail as the rule says it, word by word."""
    subject, _, axes = cell.partition("[")
    holding = [row for row in rows if row[0] == cell]
    if not holding:
        same_axes = [row for row in rows if "*" in row[0] and row[0].partition("[")[2] == axes]
        matching = [row for row in same_axes if fnmatch.fnmatchcase(subject, row[0].partition("[")[0])]
        longest = max((len(row[0]) for row in matching), default=0)
        holding = [row for row in matching if len(row[0]) == longest]
        in_reference = in_reference or any(row[1] != "supported" for row in holding)
        holding = holding if in_reference or len({row[1:] for row in holding}) > 1 else []
    said = {row[1:] for row in holding}
    return ("contradictory", "") if len(said) > 1 else next(iter(said), ("undeclared", ""))


@settings(max_examples=500)
@given(ROWS, ASKED, st.booleans())
@example([("*.det", *YES), ("linalg.*", *NO)], "linalg.det", True)
@example([("a.*.b[float32]", *YES), ("a.*[float32]", *NO)], "a.x.b[float32]", True)
def test_the_lookup_agrees_with_the_model(rows: list[Row], cell: str, in_reference: bool) -> None:
    found = ClaimLookup(rows).find(cell, in_reference)

    assert (found.state, found.detail) == model(rows, cell, in_reference)


@given(ROWS, ASKED, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_a_declaration_changes_nothing(
    rows: list[Row], cell: str, in_reference: bool, draw: random.Random
) -> None:
    shuffled = draw.sample(rows, len(rows))

    assert ClaimLookup(shuffled).find(cell, in_reference) == ClaimLookup(rows).find(cell, in_reference)


@given(ROWS, ASKED)
def test_the_written_cells_of_a_claim_say_it(rows: list[Row], cell: str) -> None:
    found = ClaimLookup(rows).find(cell)

    assert all((written, found.state, found.detail) in rows for written in found.written)
    assert bool(found.written) == (found.state not in (UNDECLARED, CONTRADICTORY))


@given(ROWS, st.lists(ASKED, max_size=4))
def test_contradictions_are_those_of_the_single_cells(rows: list[Row], cells: list[str]) -> None:
    lookup = ClaimLookup(rows)
    claims = [lookup.find(cell) for cell in cells]

    assert {claim.problem for claim in claims if claim.problem} <= set(lookup.contradictions(cells))


TWO_PATTERNS = (
    "operators.add[bool] is matched by contradicting patterns of equal length: operators.*d[bool] is unsupported "
    "(hardware), operators.a*[bool] is supported (native); declare it by name."
)
TWICE = (
    "operators.add[bool] is declared twice and differently: supported (host) and supported (native); keep one of them."
)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("operators.a*[bool]", *YES), ("operators.*d[bool]", *NO)], TWO_PATTERNS),
        ([("operators.add[bool]", *YES), ("operators.add[bool]", *HOST)], TWICE),
    ],
)
def test_a_contradiction_is_a_sentence_and_an_error(rows: list[Row], sentence: str) -> None:
    lookup = ClaimLookup(rows)

    assert lookup.find("operators.add[bool]") == FoundClaim(CONTRADICTORY, problem=sentence)
    with pytest.raises(DeclarationError) as error:
        lookup.claim("operators.add[bool]")
    assert str(error.value) == sentence


def test_patterns_of_equal_length_that_agree_hold_together() -> None:
    lookup = ClaimLookup([("*.b", *YES), ("a.*", *YES)])

    assert lookup.claim("a.b") == FoundClaim(*YES, written=("*.b", "a.*"))
    assert lookup.claim("c.d") == NOT_DECLARED


def test_a_cell_is_looked_up_in_a_few_calls_among_six_hundred_patterns() -> None:
    families = [f"operators.family{number}.*" for number in range(20)]
    axes = [f"[dtype{number}-{mode}]" for number in range(14) for mode in ("inference", "training")]
    lookup = ClaimLookup((f"{subject}{axis}", *YES) for subject in ("operators.*", *families) for axis in axes)
    cells = [f"operators.family{number % 40}.op{number}{axes[number % 28]}" for number in range(20_000)]
    found: list[FoundClaim] = []

    calls = calls_of(lambda: found.extend(lookup.find(cell) for cell in cells))

    assert calls <= 40 * len(cells)
    assert {claim.state for claim in found} == {"supported"}

"""Claims and how they merge."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import Cell
from conformance.accelerators.declaration import Claim, Declaration, Detail, State, supported, unsupported
from conformance.base.errors import DeclarationError

YES, NO = supported(), unsupported("no unit for it")
ADD = Cell("operators.add", "float16", "inference")
ALL = Cell("operators.*", "float16", "inference")


def test_silence_is_undeclared():
    assert Declaration().claim(ADD).state is State.UNDECLARED


def test_an_exact_cell_beats_a_pattern_and_a_longer_pattern_a_shorter():
    linalg = Cell("operators.linalg.*", "float16", "inference")
    declaration = Declaration.of([(ALL, YES), (linalg, NO), (ADD, NO)])

    assert declaration.claim(ADD).state is State.UNSUPPORTED
    assert declaration.claim(Cell("operators.linalg.qr", "float16", "inference")).state is State.UNSUPPORTED
    assert declaration.claim(Cell("operators.mul", "float16", "inference")).state is State.SUPPORTED


def test_a_pattern_claims_no_more_than_the_reference_has():
    declaration = Declaration.of([(ALL, YES)])

    assert declaration.claim(ADD, in_reference=False).state is State.UNDECLARED
    assert Declaration.of([(ADD, YES)]).supports(ADD, in_reference=False)


def test_a_pattern_stays_within_its_dtype_and_mode():
    declaration = Declaration.of([(ALL, YES)])

    assert not declaration.supports(Cell("operators.add", "float16", "training"))
    assert not declaration.supports(Cell("operators.add", "float32", "inference"))


def test_the_same_cell_twice_and_differently_is_an_error():
    with pytest.raises(DeclarationError, match=r"declared twice.*supported \(native\) and unsupported \(hardware\)"):
        Declaration.of([(ADD, YES), (ADD, NO)])


def test_patterns_of_equal_length_that_contradict_are_an_error():
    declaration = Declaration.of([(Cell("operators.a*", "bool", None), YES), (Cell("operators.*d", "bool", None), NO)])

    with pytest.raises(DeclarationError, match="contradicting patterns"):
        declaration.claim(Cell("operators.add", "bool", None))


def test_a_later_source_wins_cell_by_cell():
    merged = Declaration.of([(ADD, YES), (ALL, YES)]).overridden_by(Declaration.of([(ADD, NO)]))

    assert (merged.claim(ADD).state, merged.claim(ALL).state) == (State.UNSUPPORTED, State.SUPPORTED)


@pytest.mark.parametrize(
    ("state", "detail"),
    [(State.SUPPORTED, Detail.HARDWARE), (State.UNSUPPORTED, None), (State.UNDECLARED, Detail.HOST)],
)
def test_impossible_claims_cannot_be_made(state, detail):
    with pytest.raises(DeclarationError, match="a claim cannot be"):
        Claim(state, detail, "reason")


def test_the_hash_depends_on_claims_and_not_on_their_order():
    one, other = Declaration.of([(ADD, YES), (ALL, NO)]), Declaration.of([(ALL, NO), (ADD, YES)])

    assert one.sha256 == other.sha256
    assert one.sha256 != Declaration.of([(ADD, YES), (ALL, YES)]).sha256

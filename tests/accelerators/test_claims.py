"""The words in which accelerators declare themselves."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import DTYPE, STREAM, TRITON, Cell
from conformance.accelerators.claims import (
    accumulates_wide,
    communicates,
    declaration_of,
    dtypes,
    dtypes_in,
    emulates,
    lacks,
    parse_cell,
    stores,
)
from conformance.accelerators.declaration import Detail, State
from conformance.base.errors import DeclarationError


def test_a_differentiable_dtype_is_claimed_for_training_and_others_are_not():
    declaration = declaration_of(dtypes("float16", "int8"))

    assert declaration.supports(Cell("operators.add", "float16", "training"))
    assert declaration.supports(Cell("operators.add", "int8", "inference"))
    assert not declaration.supports(Cell("operators.add", "int8", "training"))
    assert not declaration.supports(Cell("workloads.gpt", "float16", "training"))


def test_workloads_follow_float32_and_bfloat16():
    declaration = declaration_of(dtypes("bfloat16"))

    assert declaration.supports(Cell("workloads.gpt", "bfloat16", "inference"))
    assert declaration.supports(Cell("workloads.gpt", "bfloat16", "training"))


def test_names_capabilities_cells_and_statements_are_joined():
    declaration = declaration_of({"stream.order", STREAM, Cell("event")} | lacks(TRITON, "no compiler"))

    assert {str(cell): claim.state.value for cell, claim in declaration.cells.items()} == {
        "stream.order": "supported",
        "stream": "supported",
        "event": "supported",
        "triton": "unsupported",
    }


def test_emulation_and_wide_accumulation_have_words():
    declaration = declaration_of(emulates(STREAM) | accumulates_wide("float16"))

    assert declaration.claim(STREAM.cell).detail is Detail.EMULATED
    assert declaration.claim(Cell("precision.accumulate-wide", "float16")).state is State.SUPPORTED


def test_a_communication_backend_carries_the_dtypes_that_are_named():
    declaration = declaration_of(communicates("float32", "int8"))

    assert {str(cell) for cell in declaration.cells} == {"comm", "comm.dtype[float32]", "comm.dtype[int8]"}
    assert declaration.claim(Cell("comm.dtype", "int16")).state is State.UNDECLARED


def test_yes_and_no_to_the_same_thing_is_an_error():
    with pytest.raises(DeclarationError, match="triton is declared twice and differently"):
        declaration_of(frozenset({TRITON}) | lacks(TRITON, "no compiler"))


def test_a_no_needs_a_reason():
    with pytest.raises(DeclarationError, match="needs a reason"):
        lacks(TRITON, "")


@pytest.mark.parametrize("elements", ["stream", {"stream": True}, 3, None])
def test_capabilities_must_be_a_set_of_elements(elements):
    with pytest.raises(DeclarationError, match="make it a set"):
        declaration_of(elements)


def test_a_foreign_element_is_named():
    with pytest.raises(DeclarationError, match=r"3\.5 in `capabilities`"):
        declaration_of({3.5})


def test_dtypes_come_in_the_order_of_the_matrix():
    assert dtypes_in(dtypes("bool", "bfloat16", "float32")) == ("float32", "bfloat16", "bool")
    assert dtypes_in(dtypes("float32") | stores("float64")) == ("float32",)


def test_a_dtype_is_claimed_by_the_names_of_operators_too():
    by_name = {DTYPE.on("float32"), "operators.add[float32-inference]", "operators.where[float32-inference]"}

    assert dtypes_in(by_name) == ("float32",)
    assert dtypes_in({DTYPE.on("float32")} | lacks(Cell("operators.add", "float32", "inference"), "no adder")) == ()


@pytest.mark.parametrize(
    "cell", [Cell("stream"), Cell("dtype", "bool"), Cell("dtype", "float32", "training"), Cell("operators.add")]
)
def test_a_cell_is_read_as_it_is_written(cell):
    assert parse_cell(str(cell)) == cell


def test_an_open_bracket_is_an_error():
    with pytest.raises(DeclarationError, match="does not close it"):
        parse_cell("dtype[bool")

"""The vocabulary: documented, defined once, and strict about names."""

from __future__ import annotations

import pytest

from conformance.accelerators.capabilities import VOCABULARY, Cell, capability, find_capability
from conformance.base.errors import UnknownName


def test_every_capability_is_a_documented_sentence():
    assert [c.name for c in VOCABULARY.values() if not c.doc.endswith(".")] == []


def test_the_mandatory_core_is_closed():
    core = {c.name for c in VOCABULARY.values() if c.core}

    assert core == {"device", "memory", "copy", "rng", "checkpoint", "synchronize"}


def test_a_name_is_defined_once():
    with pytest.raises(ValueError, match="'stream' is defined twice"):
        capability("stream", "Again.")


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(UnknownName, match=r"did you mean 'stream\.order'"):
        find_capability("stream.oder")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell("stream"), "stream"),
        (Cell("dtype", "bool"), "dtype[bool]"),
        (Cell("operators.add", "float32", "training"), "operators.add[float32-training]"),
    ],
)
def test_a_cell_is_written_with_its_axes(cell, text):
    assert str(cell) == text

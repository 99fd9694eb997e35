"""Coverage from a map: pure functions of what was recorded."""

from __future__ import annotations

import pytest

from tests.faults import coverage
from tests.faults.corpus import Corpus
from tests.faults.recording import Map, Record

FLAGS = {"0": ["float32", "n4"], "1": ["float32", "n4"], "2": ["=1"], "r": ["float32", "n4"]}


def recorded(**places: list[str]) -> Map:
    """A map with one case that reaches ``add.out``, with other flags at some places."""
    reached = {"aten::add.out": {**FLAGS, **{at.removeprefix("p"): flags for at, flags in places.items()}}}
    record = Record(reached=reached, own=["aten::add"], nodes={"AddBackward0": ["11"]})
    public = {"aten::add.out": ["aten::add.Tensor"], "aten::mul.out": ["aten::mul.Tensor"]}
    return Map({"operators.add[float32-inference]": record}, public, dict.fromkeys(public, FLAGS))


def test_a_kernel_that_no_case_reaches_is_missing() -> None:
    kernels = coverage.tables(recorded(), Corpus())["kernels"]

    assert kernels == {"public": 2, "exercised": 1, "missing": ["aten::mul.out"]}


@pytest.mark.parametrize(("flags", "unset"), [(["=1"], ["aten::add.out alpha"]), (["=1", "=2"], [])])
def test_a_default_is_set_only_by_another_value(flags: list[str], unset: list[str]) -> None:
    defaults = coverage.tables(recorded(p2=flags), Corpus())["defaults"]

    assert (defaults["arguments"], defaults["never set"]) == (1, unset)


def test_layouts_and_sizes_are_counted_by_input() -> None:
    layouts = coverage.tables(recorded(p0=["float32", "strided", "n13"]), Corpus())["layouts"]

    assert (layouts["inputs"], layouts["strided"], layouts["expanded"]) == (2, 1, 0)
    assert layouts["sizes"] == {"> 2^8": 1, "> 2^12": 1, "> 2^16": 0, "> 2^20": 0}
    assert layouts["never"]["strided"] == ["aten::add.out other"]


def test_sets_of_gradients_that_no_case_asks_for_are_listed() -> None:
    known = Corpus(inputs={"AddBackward0": 2, "ExpBackward0": 1})

    rules = coverage.tables(recorded(), known)["derivatives"]

    assert rules["never asked"] == ["AddBackward0 10", "AddBackward0 01"]
    assert (rules["exercised"], rules["missing"]) == (1, ["ExpBackward0"])


def test_a_dtype_that_the_databases_give_and_no_case_does_is_missing() -> None:
    found = recorded(p0=["float64", "n4"], p1=["float64", "n4"], r=["float64", "n4"])

    assert coverage.tables(found, Corpus())["missing_dtypes"] == {"aten::add.out": ["float32"]}


def test_an_unknown_accelerator_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage.main(["--accelerator", "smi"]) == 4
    assert "accelerator 'smi' is not registered" in capsys.readouterr().err

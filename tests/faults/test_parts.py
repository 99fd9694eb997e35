"""A part of the operators: every case is in one part, with its variants, and faults are those of its own operators."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from tests.defects import bench
from tests.faults import judging
from tests.faults.fault import Fault
from tests.faults.parts import Part, chosen, names_of
from tests.faults.recording import Map, Record

CASES = ["operators.add[float32-training]", "operators.linalg.norm.subgradients_at_zero[float32-inference]"]


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("operators.add[float32-training]", ["add"]),
        ("operators.nn.functional.conv2d[float32-inference]", ["conv2d"]),
        ("operators.div.no_rounding_mode[int64-inference]", ["div", "div_no_rounding_mode"]),
        (CASES[1], ["linalg_norm", "linalg_norm_subgradients_at_zero"]),
    ],
)
def test_names_of_kernels(case: str, names: list[str]) -> None:
    assert names_of(case) == names


def test_each_case_of_an_operator_is_in_one_part_and_parts_are_alike() -> None:
    cases = list(bench.plan("operators"))
    parts = [Part(number, 12).cases([*cases, "utils.anything"]) for number in range(1, 13)]

    assert Counter(case for part in parts for case in part) == Counter(cases)
    assert min(map(len, parts)) > len(cases) / 30
    assert max(map(len, parts)) < len(cases) / 6
    assert Part(1, 1).has(CASES[0])


def test_a_fault_is_of_what_the_recorded_cases_are_for() -> None:
    found = Map({CASES[0]: Record(own=["aten::add"], nodes={"AddBackward0": ["11"]}), CASES[1]: Record(own=[])})
    found.public = {"aten::_linalg_norm_helper": ["aten::linalg_norm"], "aten::mul.out": ["aten::mul.Tensor"]}
    is_chosen = chosen(found)

    kernels = ["aten::add.out", "aten::add_.Tensor", "aten::_linalg_norm_helper", "aten::mul.out", "aten::addmm"]
    assert [is_chosen(Fault("C", "last", kernel, "r0")) for kernel in kernels] == [True, True, True, False, False]
    rules = ["AddBackward0", "MulBackward0"]
    assert [is_chosen(Fault("F", "scaled", rule, "0", "always")) for rule in rules] == [True, False]


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b"])
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected K/N"):
        Part.of(text)


def test_a_case_of_a_module_is_about_the_kernel_that_this_module_alone_has() -> None:
    cells = (
        "modules.LSTMCell[float32-training]",
        "modules.turns.evaluation[LSTM]",
        "modules.GRUCell[float32-training]",
    )

    found = [judging.is_of_its_module("aten::_thnn_fused_lstm_cell", cell) for cell in cells]

    assert found == [True, True, False]
    assert not judging.is_of_its_module("aten::mm.out", cells[0])

"""Direct calls of overloads that PyTorch's databases do not call: values of another form of the operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.faults import corpus, encoding, forks, further_calls
from tests.faults.fault import Fault
from tests.faults.liveness import _known_values, show
from tests.faults.overloads import overload
from tests.faults.recording import Map, call

ROW = torch.tensor([1.0, 2.0, 3.0])
PLACES = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("known", "values", "other"),
    [
        ("searchsorted.Tensor", [ROW, ROW, False, False, None, None], "searchsorted.Scalar"),
        ("searchsorted.Tensor", [ROW, ROW[:0], False, False, None, None], "searchsorted.Scalar"),
        ("isin.Tensor_Tensor", [ROW, ROW, False, False], "isin.Scalar_Tensor_out"),
        ("norm.ScalarOpt_dim", [ROW, 2, [0], False], "norm.dtype_out"),
        ("scatter.reduce", [ROW, 0, PLACES, ROW, "add"], "scatter.value_reduce_out"),
        ("_foreach_abs", [[ROW, ROW]], "_foreach_abs.out"),
        ("_foreach_add.List", [[ROW, ROW], [ROW, ROW], 1], "_foreach_add.ScalarList"),
        ("fill.Scalar", [ROW, 0.5], "fill_.Tensor"),
    ],
)
def test_the_values_of_another_form_fit(known: str, values: list[Any], other: str) -> None:
    kept = corpus.Corpus({f"aten::{known}": [encoding.encode(values)]})

    given = list(_known_values(f"aten::{other}", kept))

    assert given
    call(overload(f"aten::{other}"), list(given[0].values()))


def test_the_further_calls_fit() -> None:
    """Fused cells exist on accelerators alone."""
    for name in further_calls.NAMES:
        assert further_calls.of(name), name
        for values in further_calls.of(name) if "_thnn_" not in name else ():
            call(overload(name), values)


MATRIX = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
NUMBERS = torch.tensor([[1, 2], [3, 4]])
KEPT = corpus.Corpus(
    {
        name: [encoding.encode(values), encoding.encode([*values])]
        for name, values in {
            "aten::native_batch_norm": [MATRIX.T, *[ROW[:2]] * 4, True, 0.1, 0.5],
            "aten::exp.out": [NUMBERS, NUMBERS.float()],
            "aten::mul.out": [NUMBERS, NUMBERS, NUMBERS],
            "aten::equal": [ROW, PLACES.float()[[0, 1, 0]]],
            "aten::nan_to_num.out": [ROW, None, None, None, ROW],
            "aten::nll_loss_forward.output": [MATRIX, PLACES, None, 0, -100, ROW[:2], ROW[0]],
            "aten::relu": [ROW],
            "aten::_foreach_mm": [[NUMBERS], [NUMBERS]],
            "aten::_foreach_abs": [[ROW, ROW]],
            "aten::replication_pad2d_backward": [MATRIX[None], MATRIX[None, :1, :1], [0, 2, 0, 1]],
            "aten::elu.out": [ROW, 1, 1, 1, ROW],
            "aten::le.Scalar_out": [ROW, 2.0, ROW > 1],
            "aten::triu.out": [MATRIX, 1, MATRIX],
        }.items()
    }
)


@pytest.mark.parametrize(
    ("fault", "due"),
    [
        # Equal tensors, special values, other dtypes and lists of tensors show these.
        (Fault("B", "expansion", "aten::equal", "0"), ""),
        (Fault("A", "default", "aten::nan_to_num.out", "3"), ""),
        (Fault("G", "swallowed", "aten::relu"), ""),
        (Fault("G", "swallowed", "aten::_foreach_mm"), ""),
        (Fault("E", "int through float", "aten::mul.out", "0"), ""),
        (Fault("L", "input cut", "aten::native_batch_norm", "0", "second 8"), ""),
        # The largest number beside infinity, what is behind the others, rows of vectors, and further calls show these.
        (Fault("E", "infinity", "aten::le.Scalar_out", "0"), ""),
        (Fault("E", "NaN", "aten::triu.out", "0"), ""),
        (Fault("C", "row", "aten::relu", "r0"), ""),
        (Fault("A", "default", "aten::_thnn_fused_lstm_cell", "3"), ""),
        (Fault("E", "int through double", "aten::searchsorted.Tensor_out", "0"), ""),
        # These no legal call can show.
        (Fault("E", "subnormals", "aten::replication_pad2d_backward", "1"), "does not read"),
        (Fault("E", "int through float", "aten::exp.out", "0"), "in floating point"),
        (Fault("E", "negative zero", "aten::elu.out", "0"), "which sign"),
        (Fault("L", "input cut", "aten::native_batch_norm", "1", "second 8"), "such an axis"),
        (Fault("C", "last", "aten::nll_loss_forward.output", "r1"), "such an axis"),
        (Fault("G", "swallowed", "aten::_foreach_abs"), "computes all wrong calls"),
        (Fault("A", "neighbour", "aten::native_batch_norm", "0", "1"), "numbers of dimensions"),
    ],
    ids=str,
)
def test_a_fault_is_live_or_no_legal_call_can_show_it(fault: Fault, due: str) -> None:
    [copy] = forks.run([fault], lambda each, send: show(each, Map(), KEPT, "sim", send), 1)

    shown = copy.messages[-1]

    assert (shown.live, due in shown.impossible) == (not due, True), shown
    assert bool(shown.impossible) == bool(due), shown

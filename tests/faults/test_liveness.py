"""Direct calls of overloads that PyTorch's databases do not call: values of another form of the operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.faults import corpus, encoding
from tests.faults.liveness import _known_values
from tests.faults.overloads import overload
from tests.faults.recording import call

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

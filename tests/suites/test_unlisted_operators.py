"""Operators that PyTorch's own database lacks: their cases are red on a device that gets one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.database import database
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.unlisted import unlisted

from .test_operators_detect import run

#: Change of the arguments of a call.
Change = Callable[[Call], Call]


def without(*names: str) -> Change:
    """Ignore these keywords."""
    return lambda sample: replace(sample, kwargs={k: v for k, v in sample.kwargs.items() if k not in names})


def with_argument(place: int, change: Callable[[Any], Any]) -> Change:
    """Misread the argument at a place after the input."""
    return lambda sample: replace(sample, args=tuple(change(v) if i == place else v for i, v in enumerate(sample.args)))


def of_dtype(dtype: torch.dtype) -> Change:
    """Read the input through a dtype."""
    return lambda sample: replace(sample, input=sample.input.to(dtype).to(sample.input.dtype))


@pytest.mark.parametrize(
    ("cell", "change"),
    [
        ("nn.functional.fold[float64-inference]", of_dtype(torch.float32)),
        ("nn.functional.fold[bfloat16-inference]", lambda sample: replace(sample, input=sample.input.flip(-1))),
        ("nn.functional.fold[float32-training]", of_dtype(torch.bfloat16)),
        ("nn.functional.affine_grid[float32-inference]", without("align_corners")),
        ("nn.functional.affine_grid[float64-inference]", of_dtype(torch.float32)),
        ("fake_quantize_per_tensor_affine[float32-inference]", with_argument(3, lambda highest: highest + 1)),
        ("fake_quantize_per_channel_affine[float32-inference]", with_argument(1, torch.zeros_like)),
        ("fill_diagonal[int64-inference]", without("wrap")),
        ("poisson[float32-inference]", lambda sample: replace(sample, input=sample.input + 0.5)),
        ("binomial[float32-inference]", with_argument(0, lambda chance: chance * 0.9)),
        ("random[int32-inference]", with_argument(0, lambda bound: bound + 20)),
        ("random[bool-inference]", with_argument(0, lambda bound: 1)),
        ("nn.functional.dropout1d[float32-inference]", lambda s: replace(s, kwargs={**s.kwargs, "p": 0.75})),
    ],
)
def test_a_device_that_gets_one_thing_wrong_is_red(cell: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(f"operators.{cell}").count > 3
    monkeypatch.setattr(execution, "execute", lambda function, sample, **extra: call(function, change(sample), **extra))

    with pytest.raises(AssertionError):
        run(f"operators.{cell}")


def test_what_the_database_has_comes_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal import common_methods_invocations

    listed = {info.full_name for info in common_methods_invocations.op_db}

    assert unlisted()
    assert listed.isdisjoint(info.full_name for info in unlisted()), "a row that the database has, too, goes away"
    assert [database()[info.full_name].op for info in unlisted()] == [info.op for info in unlisted()]


def test_every_dtype_that_is_given_is_one_of_the_cpu() -> None:
    """A dtype that is missing here would make a case that nothing is compared in."""
    for info in unlisted():
        for dtype in info.dtypes:
            for sample in info.sample_inputs("cpu", dtype):
                info.op(sample.input.clone(), *sample.args, **sample.kwargs)

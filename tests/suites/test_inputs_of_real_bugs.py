"""Inputs that backends got wrong in public bug reports: each defect shows for these alone, and right devices pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call

from .test_operators_detect import run

Device = Callable[..., Any]


def red(cell: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a cell is green on a right device, and red on a broken one by a case that says why."""
    assert run(f"operators.{cell}").count > 5
    monkeypatch.setattr(execution, "execute", device)

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{cell}")


def only_plain(change: Callable[[Any], Any]) -> Device:
    """Return a device that reads the arguments of calls without outputs in this way."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if extra or re.fullmatch(r"[a-z].*_", getattr(function, "__name__", "")):
            return call(function, sample, **extra)
        return call(function, sample.with_arguments(mapped(sample.arguments, change)))

    return execute


# --- near numbers -----------------------------------------------------------------------------------------------------


def through(dtype: torch.dtype, *wide: torch.dtype) -> Callable[[Any], Any]:
    """Round tensors of wide dtypes, and large numbers, to a narrower dtype."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(dtype).to(leaf.dtype) if leaf.dtype in wide and not leaf.requires_grad else leaf
        if type(leaf) in (int, float) and abs(leaf) > 1 << 9:
            return type(leaf)(torch.tensor(leaf, dtype=torch.float64).to(dtype).double().item())
        return leaf

    return change


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "isin", "searchsorted", "bucketize"])
@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [(torch.int64, torch.float64), (torch.int32, torch.float32), (torch.float64, torch.float32)],
)
def test_a_comparison_in_a_narrower_float_is_wrong(
    name: str, dtype: torch.dtype, narrow: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = str(dtype).removeprefix("torch.")
    red(
        f"{name}[{kind}-inference]",
        only_plain(through(narrow, dtype)),
        "neighbours of|integers (plus|times)",
        monkeypatch,
    )


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_comparison_with_a_number_through_a_float_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for two tensors is right."""
    rounded = only_plain(through(torch.float64, torch.int64))

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        with_number = sample.args and not isinstance(sample.args[0], torch.Tensor)
        return (rounded if with_number else call)(function, sample, **extra)

    red(f"{name}[int64-inference]", execute, "neighbours of 900719925474105", monkeypatch)


# --- bytes of truth values --------------------------------------------------------------------------------------------


def is_one(leaf: Any) -> Any:
    """Take a byte for true if it is 1."""
    odd = isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bool and leaf.layout is torch.strided
    return (leaf.view(torch.uint8) == 1) if odd else leaf


@pytest.mark.parametrize(
    "cell",
    [
        "masked_fill[float32-inference]",
        "masked_fill[bfloat16-inference]",
        "masked_select[float32-inference]",
        "masked_scatter[float32-inference]",
        "where[float32-inference]",
        "logical_and[bool-inference]",
        "logical_not[bool-inference]",
        "any[bool-inference]",
        "all[bool-inference]",
        "sum[bool-inference]",
        "nonzero[bool-inference]",
        "__getitem__[float32-inference]",
        "index_put[float32-inference]",
        "float[bool-inference]",
    ],
)
def test_a_true_value_whose_byte_is_not_one(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(cell, only_plain(is_one), "true values whose bytes are not 1", monkeypatch)

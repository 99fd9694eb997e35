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


# --- memory -----------------------------------------------------------------------------------------------------------


def as_if_dense(leaf: Any) -> Any:
    """Read rows whose elements lie side by side as if the rows did, too."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.dim() < 2:
        return leaf
    if leaf.stride(-1) != 1 or 0 in leaf.stride() or list(leaf.stride()) != sorted(leaf.stride(), reverse=True):
        return leaf
    dense = torch.empty(leaf.shape, device="meta").stride()
    return leaf.as_strided(leaf.shape, dense, leaf.storage_offset())


@pytest.mark.parametrize("cell", ["mul[float32-inference]", "cat[float16-inference]", "mm[bfloat16-inference]"])
def test_rows_that_are_longer_than_the_matrix(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(cell, only_plain(as_if_dense), "columns of longer rows|one of two rows", monkeypatch)


def writes_beside(function: Any, sample: Call, **extra: Any) -> Any:
    """Write behind the first row of an input that is a part of longer rows; the result is right."""
    result = call(function, sample, **extra)
    for tensor in sample.tensors[:1] if not extra else ():
        if tensor.dim() > 1 and tensor.stride(-1) == 1 and tensor.stride(-2) == tensor.shape[-1] + 3:
            tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.shape[-1]).fill_(0)
    return result


@pytest.mark.parametrize("name", ["isfinite", "isinf", "sum", "nn.functional.relu", "sort"])
def test_a_call_that_writes_beside_a_view_that_it_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"{name}[float32-inference]", writes_beside, "input 0: the call wrote to memory between", monkeypatch)


def test_a_write_into_columns_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        target = sample.input
        in_place = re.fullmatch(r"[a-z].*_", getattr(function, "__name__", ""))
        if not in_place or target.is_contiguous() or target.dim() < 2 or target.shape[-1] != 1:
            return call(function, sample, **extra)
        right = call(function, sample.with_arguments((target.clone(), sample.args, sample.kwargs)), **extra)
        dense = target.as_strided(target.shape, torch.empty(target.shape, device="meta").stride())
        dense.copy_(right)
        return target

    red("add[float32-inference]", execute, "size 1 in dimension .* in-place variant", monkeypatch)

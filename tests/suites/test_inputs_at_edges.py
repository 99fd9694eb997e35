"""Numbers and tensors at edges: each device is wrong for one of them alone, and its cell is red."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import Statement, call

from .test_inputs_of_real_bugs import Device, red


def larger_parameters(function: Any, sample: Call, **extra: Any) -> Any:
    """Make parameters of float32 beside inputs of bfloat16 larger by two percent."""
    first = sample.input.dtype

    def leaf(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32 and first is torch.bfloat16
        return value * 1.02 if is_wide else value

    return call(function, sample.with_arguments(mapped(sample.arguments, leaf)), **extra)


def positive_scale(function: Any, sample: Call, **extra: Any) -> Any:
    scale = sample.kwargs.get("scale")
    return call(function, sample if scale is None else sample.with_argument("scale", abs(scale)), **extra)


def in_32_bits(function: Any, sample: Call, **extra: Any) -> Any:
    found = call(function, sample, **extra)
    return found % (1 << 31) if isinstance(found, torch.Tensor) and found.dtype is torch.int64 else found


def shift_of_left_ignored(function: Any, sample: Call, **extra: Any) -> Any:
    """Roll a power of two of numbers to the right, whatever the shift says."""
    given = sample.input
    if isinstance(given, torch.Tensor) and given.dim() == 1 and given.numel().bit_count() == 1 and sample.args:
        sample = replace(sample, args=mapped(sample.args, lambda leaf: abs(leaf) if type(leaf) is int else leaf))
    return call(function, sample, **extra)


def cut_to_one_row(function: Any, sample: Call, **extra: Any) -> Any:
    found, given = call(function, sample, **extra), sample.input
    is_row = isinstance(given, torch.Tensor) and given.dim() == 3 and given.shape[0] == 1
    if not is_row:
        return found
    return found[:1] if isinstance(found, torch.Tensor) else (found[0][:1], *found[1:])


def default_offset_is_zero(function: Any, sample: Call, **extra: Any) -> Any:
    """Begin a view at the start of the memory if the call does not say where, and not where the input begins."""
    given, is_said = sample.input, len(sample.args) > 2 or "storage_offset" in sample.kwargs
    if isinstance(given, torch.Tensor) and not is_said and given.storage_offset():
        sample = replace(sample, kwargs={**sample.kwargs, "storage_offset": 0})
    return call(function, sample, **extra)


def first_norm_by_default(function: Any, sample: Call, **extra: Any) -> Any:
    """Return the sum of magnitudes if the call does not say which norm it wants."""
    return call(function, sample if sample.args or "p" in sample.kwargs else sample.with_argument("p", 1), **extra)


def last_row_kept(function: Any, sample: Call, **extra: Any) -> Any:
    """Leave the last row as it was where a number is assigned to a part."""
    before = sample.input.clone() if isinstance(function, Statement) and function.text.endswith(" = 20") else None
    found = call(function, sample, **extra)
    if before is not None:
        found[-1] = before[-1]
    return found


class Cached:
    """Keeps the bound of the first clamp that prints alike with six decimals."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        def leaf(value: Any) -> Any:
            return self.known.setdefault(f"{value:f}", value) if type(value) is float else value

        args, kwargs = mapped([sample.args, sample.kwargs], leaf)
        return call(function, replace(sample, args=args, kwargs=kwargs), **extra)


@pytest.mark.parametrize(
    ("cell", "device", "message"),
    [
        ("nn.functional.batch_norm[bfloat16-inference]", larger_parameters, "parameters in float32"),
        ("nn.functional.scaled_dot_product_attention[float32-inference]", positive_scale, "a negative scale"),
        ("randint[int64-inference]", in_32_bits, "of 40 bits"),
        ("random[int64-inference]", in_32_bits, "the mean differs"),
        ("roll[int64-inference]", shift_of_left_ignored, "sizes of models|from the end|negative"),
        ("unique[float32-inference]", cut_to_one_row, "one row in three dimensions"),
        ("clamp_min[float32-inference]", Cached(), "the number"),
        ("__getitem__[int64-inference]", last_row_kept, "= 20"),
        ("as_strided[float32-inference]", default_offset_is_zero, "without storage_offset"),
        ("norm[float32-inference]", first_norm_by_default, "without argument 1"),
    ],
)
def test_a_device_that_is_wrong_there_is_red(
    cell: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(cell, device, message, monkeypatch)

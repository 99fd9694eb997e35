"""Inputs that the opened rows of reported bugs asked for: each defect shows for these alone, and right devices pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from conformance.suites.compile import tables
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from tests.defects import bench
from tests.faults.overriding import Call as KernelCall
from tests.faults.overriding import overridden

from .test_inputs_of_conditions import only
from .test_inputs_of_real_bugs import Device, check_compiled, red
from .test_inputs_of_reports import Miscomputed, if_it, is_long, tensors, wrong
from .test_operators_detect import run


def has_an_element_behind(function: Any, sample: Call) -> bool:
    """Return whether a tensor without dimensions lies behind other numbers in memory."""
    return len(tensors(sample)) == 2 and any(not t.dim() and t.storage_offset() for t in tensors(sample))


def has_an_even_number_in_groups(function: Any, sample: Call) -> bool:
    """Return whether a convolution in groups has an even number of channels in each one, and windows of one place."""
    weight = tensors(sample)[1]
    steps = sample.kwargs.get("stride", 1)
    is_plain = {*steps} == {1} if isinstance(steps, tuple) else steps == 1
    return sample.kwargs.get("groups", 1) > 1 and weight.shape[1] % 2 == 0 and weight[0, 0].numel() == 1 and is_plain


def is_of_one_channel(function: Any, sample: Call) -> bool:
    return tuple(tensors(sample)[1].shape) == (1, 1, 2, 2) and sample.input.dtype is torch.bfloat16


def reduces_all_but_one(function: Any, sample: Call) -> bool:
    return sample.input.dim() == 6 and sample.kwargs.get("dim") is not None and len(sample.kwargs["dim"]) == 5


def has_the_lowest(function: Any, sample: Call) -> bool:
    return sample.input.is_floating_point() and bool((sample.input == torch.finfo(sample.input.dtype).min).any())


def is_one_of_five(function: Any, sample: Call) -> bool:
    return sample.input.dim() == 5 and sample.input.numel() == 7 and sample.kwargs.get("dim") == -3


def is_nearly_the_largest(function: Any, sample: Call) -> bool:
    return bool((sample.input.abs() > torch.finfo(sample.input.dtype).max / 8).any())


def is_of_negative_zeros(function: Any, sample: Call) -> bool:
    return sample.input.numel() > 8192 and bool(((sample.input == 0) & sample.input.signbit()).all())


def is_of_long_columns(function: Any, sample: Call) -> bool:
    return sample.input.dim() == 2 and len(sample.input) > 131_072


def makes_many_channels(function: Any, sample: Call) -> bool:
    return tensors(sample)[1].shape[0] > 65_536


def has_many_right_sides(function: Any, sample: Call) -> bool:
    return tensors(sample)[-1].shape[-1] > 1 << 19


@pytest.mark.parametrize(
    ("cell", "device", "message"),
    [
        *(
            (f"{name}-inference]", if_it(has_an_element_behind), "one element of a vector")
            for name in ("bitwise_xor[bool", "lt[bfloat16", "fmod[int16", "atan2[float64")
        ),
        ("nn.functional.conv2d[float32-inference]", if_it(has_an_even_number_in_groups), "sizes of models"),
        ("nn.functional.conv1d[float16-inference]", if_it(has_an_even_number_in_groups), "sizes of models"),
        ("nn.functional.conv2d[bfloat16-inference]", if_it(is_of_one_channel), "sizes of models"),
        ("nn.functional.conv2d[float32-inference]", if_it(makes_many_channels), "sizes of models"),
        ("sum[float32-inference]", if_it(reduces_all_but_one), "several of six dimensions"),
        ("amax[float32-inference]", if_it(is_of_negative_zeros), "one vector of -0.0 alone"),
        ("sum[bfloat16-inference]", if_it(is_one_of_five), "one element along the dimension"),
        ("topk[float32-inference]", if_it(has_the_lowest, lambda found: [wrong(each) for each in found]), "the ends"),
        ("abs[complex128-inference]", if_it(is_nearly_the_largest), "numbers of 4e"),
        ("sgn[complex64-inference]", if_it(is_nearly_the_largest), "numbers of 9e"),
        ("argsort[int64-inference]", if_it(is_of_long_columns), "sizes of models"),
        ("linalg.solve_triangular[float32-inference]", if_it(has_many_right_sides), "sizes of models"),
        ("fft.fft[complex128-inference]", if_it(is_long(0, 4095)), "sizes of models"),
    ],
    ids=lambda value: value if isinstance(value, str) and "[" in value else "",
)
def test_a_defect_that_only_such_inputs_show(
    cell: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(cell, device, message, monkeypatch)


def test_gradients_of_parameters_of_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 16 bits halves the gradient of a weight in float32."""
    only(monkeypatch, "training.wide_parameters")
    cell = "operators.nn.functional.batch_norm[bfloat16-training]"
    assert run(cell).count

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        return [each if each is None or each.dtype is torch.bfloat16 else each / 2 for each in found]

    monkeypatch.setattr(execution, "gradients", gradients)
    with pytest.raises(AssertionError, match=r"parameters in float32.*gradient of input"):
        run(cell)


@contextmanager
def _casts(dtype: torch.dtype, change: Any) -> Iterator[None]:
    """Change what a device makes where it copies to a dtype of its own."""

    def copied(call: KernelCall) -> Any:
        found = call.run()
        given, made = call.values[0], call.values[1]
        if isinstance(made, torch.Tensor) and made.dtype is dtype and given.dtype is not dtype:
            change(given, made)
        return found

    with overridden({"aten::_copy_from": copied}, "PrivateUse1"):
        yield


@pytest.mark.parametrize(("least", "first"), [(256.0, "258.0"), (-1.0, "-0.0")])
def test_casts_of_every_value(least: float, first: str) -> None:
    """A cast to eight bits loses what is above a number, or the sign of zero."""
    case = "accelerator.dtype.cast_from_float32[float8_e4m3fn]"
    assert not bench.is_red(bench.Bench().run(case))

    def change(given: torch.Tensor, made: torch.Tensor) -> None:
        if given.dtype is torch.bfloat16:
            numbers = given.cpu()
            lost = numbers > least if least > 0 else (numbers == 0) & numbers.signbit()
            bits = made.cpu().view(torch.uint8)
            bits[lost] = 0x7F
            made.copy_(bits.view(made.dtype))

    place = bench.Bench()
    with _casts(torch.float8_e4m3fn, change):
        verdict = place.run(case)

    assert f"the cast from bfloat16 to float8_e4m3fn differ, the first for [{first}]" in verdict.message


def test_a_state_that_is_read_is_the_one_that_was_set() -> None:
    place = bench.Bench()
    module: Any = torch.get_device_module(place.device)
    read, write, was_set = module.get_rng_state, module.set_rng_state, []

    def reading(*given: Any) -> torch.Tensor:
        state = read(*given)
        state[-1] ^= len(was_set) > 0
        return state

    def writing(*given: Any) -> None:
        was_set.append(given)
        write(*given)

    with mock.patch.object(module, "get_rng_state", reading), mock.patch.object(module, "set_rng_state", writing):
        verdict = place.run("accelerator.rng.state_roundtrip[rand]")

    assert "1 bytes of the state differ where it is read after it was set" in verdict.message


def _parity(name: str, function: Any, args: Any) -> Any:
    return function(*args) % 2 if name == "cumsum" and args[0].dtype is torch.bool else None


def _one_row_for_all(name: str, function: Any, args: Any) -> Any:
    if name != "index_add" or args[0].stride(0):
        return None
    return function(*args).sum(0).expand(args[0].shape)


def _reversed_zeros(name: str, function: Any, args: Any) -> Any:
    return function(*args) * 0 if name == "flip" and args[0].dim() == 1 and args[0].numel() > 1024 else None


@pytest.mark.parametrize(
    ("table", "other", "message"),
    [
        (tables.RUNNING, _parity, "cumsum of truths along -1"),
        (tables.WRITING, _one_row_for_all, "rows added by index to a row that stands for several"),
        (tables.EXACT, _reversed_zeros, "one long column reversed and doubled"),
    ],
)
def test_compiled_functions(table: tuple[tables.Row, ...], other: Any, message: str) -> None:
    check_compiled(table, lambda: Miscomputed(lambda *call: None))

    with pytest.raises(AssertionError, match=message):
        check_compiled(table, lambda: Miscomputed(other))

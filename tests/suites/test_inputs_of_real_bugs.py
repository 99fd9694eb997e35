"""Inputs that backends got wrong in public bug reports: each defect shows for these alone, and right devices pass."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.trees import mapped
from conformance.plan.case import Case
from conformance.suites.compile import matrices, tables, test_programs
from conformance.suites.compile.claimed import claimed
from conformance.suites.foreach import functions as lists
from conformance.suites.foreach import test_foreach
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.database import database
from conformance.suites.operators.calls.execution import attempt, call
from conformance.suites.operators.cell import quiet
from conformance.suites.operators.inputs import model_sizes
from conformance.suites.optimizers import test_fused
from conformance.suites.utils import test_placement

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
        "neighbours of|integers (plus|times)|special values",
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


# --- sizes that models have -------------------------------------------------------------------------------------------


def where(condition: Callable[[Call, torch.Tensor], bool], change: Callable[[torch.Tensor], Any]) -> Device:
    """Return a device that changes a result in place where the condition on the call and the result holds."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if isinstance(result, torch.Tensor) and condition(sample, result):
            with torch.no_grad():
                change(result)
        return result

    return execute


def in_16_bits(_: Call, result: torch.Tensor) -> bool:
    """Return whether a result may be a long sum of numbers of one sign and like size in 16 bits."""
    kind = result.dtype in (torch.float16, torch.bfloat16) and result.numel() > 0
    return kind and bool(result.isfinite().all() & (result >= 1).all() & (result.max() > 512))


def behind_a_launch(_: Call, result: torch.Tensor) -> bool:
    return result.dim() > 0 and result.shape[0] > 65535


def lost_behind(result: torch.Tensor) -> None:
    result[65535:] = 0


def stays(result: torch.Tensor) -> None:
    result.clamp_(max=2048 if result.dtype is torch.float16 else 256)


def many_indices(sample: Call, result: torch.Tensor) -> bool:
    return result.dim() > 1 and len(sample.args) > 1 and sample.args[1].numel() > 1024


def many_matrices(sample: Call, result: torch.Tensor) -> bool:
    return result.dim() == 3 and len(result) > 1 << 16 and len(sample.args) > 1


def a_vocabulary(sample: Call, _: torch.Tensor) -> bool:
    return sample.input.shape[0] > 32000


def masked_groups(sample: Call, _: torch.Tensor) -> bool:
    """Return whether grouped heads of attention have a mask for each head of the queries."""
    mask = sample.kwargs.get("attn_mask")
    return sample.kwargs.get("enable_gqa", False) and mask is not None and mask.shape[1] > 1


def wide_last(sample: Call, _: torch.Tensor) -> bool:
    """Return whether an image of more than 256 channels has them last."""
    image = sample.input
    wide = isinstance(image, torch.Tensor) and image.dim() == 4 and image.shape[1] > 256
    return wide and image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()


def a_head_of_80(sample: Call, _: torch.Tensor) -> bool:
    return sample.input.shape[-1] % 64 not in (0, *range(1, 32))


def a_long_mean(sample: Call, _: torch.Tensor) -> bool:
    return sample.input.dim() == 4 and sample.input[0, 0].numel() > 1 << 15


@pytest.mark.parametrize(
    ("cell", "device"),
    [
        ("nn.functional.adaptive_avg_pool2d[bfloat16-inference]", where(a_long_mean, lambda r: r.clamp_(max=2.0**-7))),
        ("bmm[float16-inference]", where(behind_a_launch, lost_behind)),
        ("baddbmm[bfloat16-inference]", where(behind_a_launch, lost_behind)),
        ("mm[int32-inference]", where(behind_a_launch, lost_behind)),
        ("softmax[float16-inference]", where(behind_a_launch, lost_behind)),
        ("nn.functional.conv2d[bfloat16-inference]", where(behind_a_launch, lost_behind)),
        ("nn.functional.max_pool2d[float16-inference]", where(behind_a_launch, lost_behind)),
        *(
            (f"nn.functional.{name}[{dtype}-inference]", where(wide_last, torch.Tensor.zero_))
            for name in (
                "max_pool2d",
                "avg_pool2d",
                "adaptive_avg_pool2d",
                "interpolate.nearest",
                "interpolate.bilinear",
            )
            for dtype in ("float16", "float32")
        ),
        ("nn.functional.layer_norm[bfloat16-inference]", where(behind_a_launch, lost_behind)),
        ("cumsum[bfloat16-inference]", where(in_16_bits, stays)),
        ("cumsum[float16-inference]", where(in_16_bits, stays)),
        ("sum[float16-inference]", where(in_16_bits, stays)),
        ("mm[bfloat16-inference]", where(in_16_bits, stays)),
        ("nn.functional.linear[float16-inference]", where(in_16_bits, stays)),
        ("nn.functional.conv1d[float16-inference]", where(in_16_bits, stays)),
        ("nn.functional.scaled_dot_product_attention[bfloat16-inference]", where(a_head_of_80, torch.Tensor.zero_)),
        ("nn.functional.scaled_dot_product_attention[float16-inference]", where(masked_groups, torch.Tensor.zero_)),
        ("nn.functional.embedding[float16-inference]", where(a_vocabulary, torch.Tensor.zero_)),
        ("index_add[float32-inference]", where(many_indices, lambda r: r.clamp_(max=1024))),
        ("scatter_add[int64-inference]", where(many_indices, lambda r: r.clamp_(max=1024))),
        ("nn.functional.linear[float32-inference]", where(many_matrices, lambda r: r[0].copy_(r[-1]))),
        ("mm[float32-inference]", where(lambda _, r: len(r) > 1 << 19, lambda r: r[1 << 19 :].zero_())),
        ("add[bfloat16-inference]", where(lambda _, r: r.dim() == 4 and r.shape[1] == 80, lambda r: r[:, 64:].zero_())),
    ],
)
def test_a_size_that_models_have(cell: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    red(cell, device, "sizes of models", monkeypatch)


def test_the_host_computes_every_size() -> None:
    """A size that the host refuses would be compared with nothing."""
    refused = []
    known = [info for info in database().values() if info.full_name in model_sizes._MAKERS]
    with quiet():
        for info, dtype in ((info, dtype) for info in known for dtype in model_sizes._DTYPES if dtype in info.dtypes):
            for order, size in enumerate(model_sizes.sizes(info.full_name, dtype)):
                made = attempt(call, info, Call(0, size.input, size.args, dict(size.kwargs)))
                refused += [f"{info.full_name}, {dtype}, {order}: {made.error}"] if made.error else []

    assert {info.full_name for info in known} == set(model_sizes._MAKERS)
    assert refused == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_weight_gradient_of_a_large_image(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = list(execution.host_gradients(outputs, inputs, cotangents))
        if outputs[0].numel() > 1 << 16:
            pairs = zip(found, inputs, strict=True)
            found = [grad * 0.9 if given.shape[2:] == (1, 1) else grad for grad, given in pairs]
        return found

    cell = f"operators.nn.functional.conv2d[{dtype}-training]"
    run(cell)
    monkeypatch.setattr(execution, "gradients", gradients)

    with pytest.raises(AssertionError, match=r"sizes of models.*gradient of input 1"):
        run(cell)


def loses_the_end(function: Any, sample: Call, **extra: Any) -> Any:
    """Leave out what is behind the first 2^16 elements."""
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor) and result.numel() > 1 << 16 and result.is_contiguous():
        result.view(-1)[1 << 16 :] = 0
    return result


@pytest.mark.parametrize("cell", ["mul[float16]", "bitwise_or[int32]", "cat[bfloat16]", "logical_not[uint8]"])
def test_each_dtype_has_a_sample_of_many_blocks(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"{cell[:-1]}-inference]", loses_the_end, "many blocks|sizes of models", monkeypatch)


# --- statements of two calls ------------------------------------------------------------------------------------------


def writes_one_row(function: Any, sample: Call, **extra: Any) -> Any:
    """Write the first of several rows that a mask or an index chooses; reading alone is right."""
    sound = torch.Tensor.__setitem__

    def write(tensor: torch.Tensor, place: Any, value: Any) -> None:
        before = tensor[1:].clone()
        sound(tensor, place, value)
        if isinstance(place, torch.Tensor):
            sound(tensor, slice(1, None), before)

    with mock.patch.object(torch.Tensor, "__setitem__", write):
        return call(function, sample, **extra)


def test_rows_chosen_by_a_mask_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    red("__getitem__[float32-inference]", writes_one_row, r"t\[a\] = t\[a\]\.flip\(-1\)\), a statement", monkeypatch)
    monkeypatch.undo()
    red("__getitem__[bfloat16-inference]", writes_one_row, r"t\[a\] = t\[a\]\.flip\(-1\)\), a statement", monkeypatch)


@pytest.mark.parametrize("name", ["transpose", "narrow", "diagonal", "permute", "view", "select"])
def test_a_write_to_a_view_that_its_base_does_not_see(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if sample.form.startswith("the view written"):
            before = sample.input.clone()
            call(function, sample, **extra)
            return before
        return call(function, sample, **extra)

    red(f"{name}[float32-inference]", execute, "the view written, then the base", monkeypatch)


def by_address() -> Device:
    """Return a device that keeps results by function, address, shape and dtype of the first argument."""
    kept: dict[Any, Any] = {}

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if extra or not isinstance(sample.input, torch.Tensor) or not isinstance(result, torch.Tensor):
            return result
        key = (id(function), id(sample.input), sample.input.shape)
        return kept.setdefault(key, (sample.input, result))[1]

    return execute


def after_a_refusal() -> Device:
    """Return a device whose first call after an exception gives zeros."""
    refused: list[bool] = []

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        try:
            result = call(function, sample, **extra)
        except Exception:
            refused.append(True)
            raise
        if refused and isinstance(result, torch.Tensor):
            refused.clear()
            return torch.zeros_like(result)
        return result

    return execute


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("add", by_address),
        ("mm", by_address),
        ("nn.functional.conv2d", by_address),
        ("mm", after_a_refusal),
    ],
)
def test_a_call_that_is_made_again(name: str, device: Callable[[], Device], monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"{name}[float32-inference]", device(), "again, with other data", monkeypatch)


# --- numbers of dimensions, one tensor twice, places among special values ---------------------------------------------


def unlike_for(condition: Callable[[Call], bool], change: Callable[[Any], Any]) -> Device:
    """Return a device that gives another result, or raises, where the condition on the call holds."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        return change(result) if condition(sample) else result

    return execute


def refuses(_: Any) -> Any:
    raise RuntimeError("not supported")


def without_dimensions(sample: Call) -> bool:
    return all(tensor.dim() == 0 for tensor in sample.tensors)


def transposed_batches(sample: Call) -> bool:
    return sample.input.dim() == 3 and not sample.input.is_contiguous()


def itself(sample: Call) -> bool:
    return any(value is sample.input for value in sample.args)


def nan_among_many_rows(sample: Call) -> bool:
    return sample.input.dim() == 2 and len(sample.input) > 511 and bool(sample.input.isnan().any())


def without_places(result: Any) -> Any:
    return type(result)((result[0], result[1].masked_fill(result[0].isnan().any(-1, keepdim=True), -1)))


def without_a_status(result: Any) -> Any:
    return type(result)((*result[:-1], torch.zeros_like(result[-1])))


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("masked_scatter", unlike_for(without_dimensions, lambda r: r.view(-1)), "no dimension"),
        ("nn.functional.linear", unlike_for(transposed_batches, refuses), "not supported"),
        ("scatter", unlike_for(itself, refuses), "not supported"),
        ("topk", unlike_for(nan_among_many_rows, without_places), "the elements at the returned places"),
        ("linalg.lu_factor_ex", unlike_for(lambda _: True, without_a_status), "status"),
    ],
)
def test_other_arguments_than_the_databases_have(
    name: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(f"operators.{name}[float32-inference]").count > 5
    monkeypatch.setattr(execution, "execute", device)

    with pytest.raises((AssertionError, RuntimeError), match=message):
        run(f"operators.{name}[float32-inference]")


def fewer_in_the_second(sample: Call, _: torch.Tensor) -> bool:
    """Return whether an index of five dimensions has fewer places in the second one than the input."""
    index = next((leaf for leaf in sample.args if isinstance(leaf, torch.Tensor)), None)
    both = index is not None and index.dim() == sample.input.dim() == 5
    return both and index.shape[1] < sample.input.shape[1]


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_reduce.sum", "scatter_reduce.amax", "gather"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_an_index_with_fewer_places_than_the_input(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = where(fewer_in_the_second, lambda result: result.neg_())

    red(f"{name}[{dtype}-inference]", device, "fewer places in dimension 1", monkeypatch)


def unsorted_with_nan(function: Any, sample: Call, **extra: Any) -> Any:
    """Give different numbers from the last to the first if one is no number."""
    result = call(function, sample, **extra)
    given = sample.input
    if isinstance(given, torch.Tensor) and given.is_floating_point() and bool(given.isnan().any()):
        first = result if isinstance(result, torch.Tensor) else result[0]
        first.copy_(first.flip(0))
    return result


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_different_numbers_of_which_one_is_no_number(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"unique[{dtype}-inference]", unsorted_with_nan, "one NaN", monkeypatch)


def all_infinite(sample: Call, _: torch.Tensor) -> bool:
    """Return whether a row has infinities of one sign in all places."""
    given = sample.input
    return isinstance(given, torch.Tensor) and given.dim() == 2 and bool(given.isinf().all(-1).any())


def out_of_range(found: torch.Tensor) -> None:
    found.fill_((1 << 31) - 1)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_place_in_a_row_of_one_infinity(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"{name}[{dtype}-inference]", where(all_infinite, out_of_range), "infinities behind each other", monkeypatch)


def base_of_last(leaf: Any) -> Any:
    """Read an image that has its channels last from the start of its memory."""
    is_image = isinstance(leaf, torch.Tensor) and leaf.dim() == 4 and not leaf.is_contiguous()
    if not is_image or not leaf.is_contiguous(memory_format=torch.channels_last):
        return leaf
    return leaf.as_strided(leaf.shape, leaf.stride(), 0)


@pytest.mark.parametrize(
    "name",
    ["nn.functional.avg_pool2d", "nn.functional.batch_norm", "nn.functional.conv2d", "nn.functional.pixel_shuffle"],
)
def test_an_image_with_its_channels_last_inside_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(f"{name}[float32-inference]", only_plain(base_of_last), "channels last with an offset", monkeypatch)


@pytest.mark.parametrize("name", ["cumsum", "sum", "count_nonzero"])
def test_many_truth_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def met(sample: Call, _: torch.Tensor) -> bool:
        given = sample.input
        return isinstance(given, torch.Tensor) and given.dtype is torch.bool and given.numel() > 1 << 18

    red(f"{name}[int64-inference]", where(met, lambda result: result.sub_(1)), "sizes of models", monkeypatch)


def red_in_training(cell: str, gradients: Callable[..., Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a cell is green with the right gradients, and red with others by a case that says why."""
    run(f"operators.{cell}")
    monkeypatch.setattr(execution, "gradients", gradients)

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{cell}")


@pytest.mark.parametrize("name", ["nn.functional.softplus", "nn.functional.gelu", "sigmoid", "sin", "sqrt"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_at_a_usual_point(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = 1.0 if name == "sqrt" else 0.0

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        return [grad.masked_fill(given == point, 0) for grad, given in zip(found, inputs, strict=True)]

    red_in_training(f"{name}[{dtype}-training]", gradients, "the gradient at", monkeypatch)


def test_a_gradient_of_distances_between_two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = torch.ops.aten._cdist_backward.default

    class Broken(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is backward and 0 < args[3] < 2 and args[3] != 1:
                args = (*args[:3], 2.0, args[4])
            return func(*args, **(kwargs or {}))

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        with Broken():
            return execution.host_gradients(outputs, inputs, cotangents)

    red_in_training("cdist[float32-training]", gradients, "sizes of models", monkeypatch)


# --- draws ------------------------------------------------------------------------------------------------------------


def repeating(share: int) -> Device:
    """Return a device whose second draw begins where a part of the first one was."""
    kept: dict[Any, torch.Tensor] = {}

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if not sample.source.endswith("draws of two calls") or extra:
            return result
        before = kept.pop(sample.number, None)
        if before is None:
            kept[sample.number] = result.clone()
            return result
        result.view(-1)[: -share or None] = before.view(-1)[share:]
        return result

    return execute


def of_neighbours(function: Any, sample: Call, **extra: Any) -> Any:
    """Give each number twice."""
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor) and result.numel() > 10000:
        flat = result.view(-1)
        flat[1::2] = flat[::2][: flat[1::2].numel()].clone()
    return result


def one_at_zero(function: Any, sample: Call, **extra: Any) -> Any:
    """Give 1 for one of many probabilities of 0."""
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor) and result.numel() > 10000:
        result.view(-1)[777] = 1
    return result


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("multinomial", repeating(3), "the second call repeats the first one"),
        ("nn.functional.dropout", repeating(0), "the second call repeats the first one"),
        ("normal", of_neighbours, "numbers 1 apart|elements differ|places|standard errors"),
        ("rand_like", of_neighbours, "standard errors"),
        ("bernoulli", one_at_zero, "a draw without freedom"),
    ],
)
def test_draws_that_depend_on_each_other(
    name: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(f"{name}[float32-inference]", device, message, monkeypatch)


# --- draws, triangles, algorithms -------------------------------------------------------------------------------------


def test_a_draw_on_another_thread_that_leaves_out_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        there = threading.current_thread() is not threading.main_thread()
        if there and not extra and isinstance(sample.input, torch.Tensor):
            return call(function, sample.with_arguments((sample.input * 0, sample.args, sample.kwargs)))
        return call(function, sample, **extra)

    red("normal[float32-inference]", execute, "a draw without freedom", monkeypatch)


def test_a_kernel_that_reads_the_other_triangle_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        is_square = sample.input.shape[-2:] == sample.input.shape[-1:] * 2
        if sample.kwargs.get("upper") and sample.input.dim() > 2 and is_square and not extra:
            lower = sample.input.tril()
            whole = lower + lower.tril(-1).mT
            return call(function, sample.with_arguments((whole, sample.args, sample.kwargs)))
        return call(function, sample, **extra)

    assert run("operators.cholesky[float32-inference]").count > 5
    monkeypatch.setattr(execution, "execute", execute)

    with pytest.raises(torch.linalg.LinAlgError):  # with these numbers it is not positive definite
        run("operators.cholesky[float32-inference]")


@pytest.mark.parametrize("cell", ["index_copy[float32-inference]", "cumsum[float32-training]"])
def test_another_algorithm_where_a_deterministic_one_is_asked_for(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = torch.are_deterministic_algorithms_enabled
    device = where(lambda *_: asked(), lambda result: result.add_(1))

    red(cell, device, "with deterministic algorithms", monkeypatch)


def test_a_device_without_a_deterministic_algorithm_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("index_copy does not have a deterministic implementation")
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", execute)

    for cell in ("index_copy[float32-inference]", "index_copy[float32-training]"):
        assert run(f"operators.{cell}").metrics["deterministic"] == "refused"


@pytest.mark.parametrize("cell", ["linalg.inv[float32-inference]", "linalg.solve[float32-inference]"])
def test_many_small_matrices(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    red(cell, where(behind_a_launch, lost_behind), "sizes of models", monkeypatch)


@pytest.mark.parametrize("name", ["addbmm", "cumsum"])
def test_an_axis_beyond_a_launch_that_is_not_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = where(lambda _, result: result.dim() > 1 and result.shape[-1] > 65535, lambda r: r[..., 65535:].zero_())

    red(f"{name}[float32-inference]", device, "a long axis|sizes of models", monkeypatch)


def test_a_conjugate_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    device = where(lambda _, result: result.numel() > 1 << 16, lambda r: r.view(-1)[1 << 16 :].zero_())

    red("conj_physical[complex64-inference]", device, "many blocks", monkeypatch)


# --- compiled code ----------------------------------------------------------------------------------------------------


def begun_again(found: Any) -> Any:
    """Return running results whose first one stands again behind the first 64 of a long row."""
    if not isinstance(found, torch.Tensor):
        return type(found)(map(begun_again, found))
    again = found.clone()
    if found.shape[-1] > 64:
        again[..., 64] = found[..., 0]
    return again


def in_32_bits(found: torch.Tensor) -> torch.Tensor:
    """Return integers through 32 bits."""
    return found.to(torch.int32).to(torch.int64) if found.dtype is torch.int64 else found


def not_rounded_down(x: torch.Tensor, divisor: Any) -> torch.Tensor:
    """Cut a quotient off."""
    return torch.div(x, divisor, rounding_mode="trunc")


class Miscompiled(TorchFunctionMode):
    """Replaces a function by another, or changes its results."""

    def __init__(self, names: Sequence[str], broken: Callable[..., Any]) -> None:
        super().__init__()
        self.names, self.broken = names, broken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in self.names:
            return func(*args, **(kwargs or {}))
        if self.broken is not_rounded_down:
            return self.broken(*args)
        return self.broken(func(*args, **(kwargs or {})))


#: Runs a graph with what it is given, right or wrong.
Run = Callable[[torch.fx.GraphModule, tuple[Any, ...]], Any]


def plainly(graph: torch.fx.GraphModule, given: tuple[Any, ...]) -> Any:
    return graph(*given)


def under(mode: Callable[[], Any]) -> Run:
    """Return what runs a graph under a mode, which is made for each run."""

    def run(graph: torch.fx.GraphModule, given: tuple[Any, ...]) -> Any:
        with mode():
            return graph(*given)

    return run


def compiled_by(run: Run, check: Callable[..., Any], *arguments: Any) -> None:
    """Check with a compiler that runs graphs so."""
    with_compiler(lambda graph, _: lambda *given: run(graph, given), check, *arguments)


def with_compiler(compiler: Callable[..., Any], check: Callable[..., Any], *arguments: Any) -> None:
    """Check a device that has a compiler and claims everything."""
    accelerator = SimpleNamespace(get_compile_backend=lambda: compiler)
    claims = SimpleNamespace(supports=lambda cell: True)
    check(accelerator, claims, Checker(), torch.device("cpu"), *arguments)


def check_compiled(table: tuple[tables.Row, ...], mode: Callable[[], Any]) -> None:
    """Check a table with a compiler whose code runs under a mode."""
    compiled_by(under(mode), test_programs._check_exact, table)


class WithoutRemainders(TorchDispatchMode):
    """Refuses remainders of int64, as a device without a kernel for them does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.remainder and args[0].dtype == torch.int64:
            raise NotImplementedError("no kernel for remainder")
        return func(*args, **(kwargs or {}))


def test_a_device_may_lack_an_operator_that_a_compiled_row_calls() -> None:
    claims = SimpleNamespace(supports=lambda cell: cell.subject != "operators.remainder" or cell.dtype != "int64")
    accelerator = SimpleNamespace(
        get_compile_backend=lambda: lambda graph, _: lambda *given: under(WithoutRemainders)(graph, given)
    )
    given = accelerator, claims, Checker(), torch.device("cpu"), tables.CHAINED
    test_programs._check_exact(*given)

    chosen = claimed(claims, tables.CHAINED, lambda: (tables.operands(),))
    assert len(tables.CHAINED) - 30 < len(chosen) < len(tables.CHAINED)
    with pytest.raises(NotImplementedError):
        check_compiled(tables.CHAINED, WithoutRemainders)


@pytest.mark.parametrize(
    ("body", "given"),
    [(test_programs.test_constants, ()), (test_programs.test_layout, ()), (test_programs.test_overlap, ("alone",))],
    ids=["constants", "layout", "overlap"],
)
def test_a_compiled_case_of_a_device_that_claims_no_operator_is_skipped(body: Any, given: tuple[str, ...]) -> None:
    accelerator, claims = SimpleNamespace(), SimpleNamespace(supports=lambda cell: False)
    with pytest.raises(EnvironmentLacks, match="claims none"):
        body(accelerator, claims, Checker(), torch.device("cpu"), *given)


def test_what_the_compiler_of_torch_has_wrong_on_this_host_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_fragile(compiler: Callable[..., Any]) -> Checker:
        accelerator, check = SimpleNamespace(get_compile_backend=lambda: compiler), Checker()
        claims = SimpleNamespace(supports=lambda cell: True)
        test_programs._check_unless_torch_is_wrong(accelerator, claims, check, torch.device("cpu"), tables.FRAGILE)
        return check

    def wrong(graph: torch.fx.GraphModule, _: Any) -> Any:
        return lambda *given: under(lambda: Miscompiled(["index_add"], torch.zeros_like))(graph, given)

    monkeypatch.setattr(test_programs.Inductor, "get_compile_backend", staticmethod(lambda: "eager"))
    assert not check_fragile(lambda graph, _: graph.forward).metrics
    with pytest.raises(AssertionError, match="one number of float64 by index"):
        check_fragile(wrong)

    monkeypatch.setattr(test_programs.Inductor, "get_compile_backend", staticmethod(lambda: wrong))
    assert [*check_fragile(wrong).metrics.values()] == ["one number of float64 by index"]


@pytest.mark.parametrize(
    ("table", "names", "broken", "message"),
    [
        (tables.RUNNING, ["cumsum"], begun_again, "cumsum of 65 numbers"),
        (tables.RUNNING, ["cumprod"], begun_again, "cumprod of 65 numbers"),
        (tables.RUNNING, ["cummax"], begun_again, "cummax of 65 numbers"),
        (tables.RUNNING, ["cummin"], begun_again, "cummin of 65 numbers"),
        (tables.RUNNING, ["logcumsumexp"], begun_again, "logcumsumexp of 65 numbers"),
        (tables.WIDE, ["mul", "__mul__", "__rmul__"], in_32_bits, "range times an integer"),
        (tables.WIDE, ["add", "__add__"], in_32_bits, "far"),
        (tables.WIDE, ["floor_divide"], not_rounded_down, "floor_divide by a number"),
    ],
)
def test_long_and_wide_numbers_in_compiled_code(
    table: tuple[tables.Row, ...], names: Sequence[str], broken: Callable[..., Any], message: str
) -> None:
    check_compiled(table, lambda: Miscompiled(["nothing"], broken))

    with pytest.raises(AssertionError, match=message):
        check_compiled(table, lambda: Miscompiled(names, broken))


class Confused(TorchFunctionMode):
    """Compares what a function gives as another one gives it, which has taken these values before."""

    def __init__(self, source: str, compared: Sequence[str], change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.source, self.compared, self.change, self.found = source, compared, change, []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name in self.compared and any(args[0] is each for each in self.found):
            args = (self.change(args[0]), *args[1:])
        found = func(*args, **(kwargs or {}))
        if name == self.source:
            self.found.append(found)
        return found


def not_wrapped(negated: torch.Tensor) -> torch.Tensor:
    """Return what eight-bit numbers were negated to before they were cut to eight bits."""
    return torch.where(negated == 0, 0, negated.to(torch.int32) - 256)


@pytest.mark.parametrize(
    ("table", "source", "compared", "change", "message"),
    [
        (tables.EXACT, "neg", ["lt", "gt"], not_wrapped, "negated bytes (above|below)"),
        (tables.CHAINED, "div", ["eq"], lambda quotient: quotient + 0.125, "quotients .* are the largest"),
        (tables.CHAINED, "cumsum", ["flip"], lambda sums: sums * 1.5, "turned running sums of one number"),
    ],
    ids=["bytes", "quotients", "turned"],
)
def test_a_value_that_compiled_code_reads_before_it_is_rounded(
    table: tuple[tables.Row, ...], source: str, compared: Sequence[str], change: Callable[[Any], Any], message: str
) -> None:
    check_compiled(table, contextlib.nullcontext)

    with pytest.raises(AssertionError, match=message):
        check_compiled(table, lambda: Confused(source, compared, change))


def on_copies(graph: torch.fx.GraphModule, given: tuple[Any, ...]) -> Any:
    """Leave the inputs as they were."""
    return graph(*mapped(list(given), torch.clone))


def stale_results(graph: torch.fx.GraphModule, given: tuple[Any, ...]) -> Any:
    """Give the results of a second run, which reads what the first one has written."""
    kept = mapped(list(given), torch.clone)
    graph(*kept)
    graph(*given)
    return graph(*kept)


@pytest.mark.parametrize("writes", list(matrices.OVERLAPPING))
@pytest.mark.parametrize(("broken", "message"), [(on_copies, "after"), (stale_results, "the result of")])
def test_compiled_code_that_reads_or_writes_other_memory(writes: str, broken: Callable[..., Any], message: str) -> None:
    compiled_by(plainly, test_programs.test_overlap, writes)

    with pytest.raises(AssertionError, match=message):
        compiled_by(broken, test_programs.test_overlap, writes)


class ZerosWritten(TorchDispatchMode):
    """Gives zeros for a part of zeros that is written to a copy, as of a gradient."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        is_part = func is torch.ops.aten.slice_scatter.default
        return found * 0 if is_part and not bool(args[1].any()) else found


class Turned(TorchDispatchMode):
    """Turns the results of the calls that are met."""

    def __init__(self, met: Callable[[Any, Any], bool]) -> None:
        super().__init__()
        self.met = met

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return mapped(found, lambda x: x if x is None else x.flip(-1)) if self.met(func, args) else found


def check_gradients(mode: Callable[[], Any], check: Callable[..., Any]) -> None:
    """Check gradients with a compiler whose code, forward and backward, runs under a mode."""
    run = under(mode)
    backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(lambda *given: run(graph, given)))
    with_compiler(backend, check)


def distances_from_a_mean(func: Any, args: Any) -> bool:
    is_difference = func is torch.ops.aten.sub.Tensor and isinstance(args[1], torch.Tensor)
    return is_difference and args[1].shape[-1:] == (1,) and args[0].shape[-1] > 1


def joined_rows(func: Any, args: Any) -> bool:
    return func is torch.ops.aten.cat.default and len(args[0]) > 1 and all(len(part) == 1 for part in args[0])


def is_reflected(func: Any, args: Any) -> bool:
    return func is torch.ops.aten.reflection_pad2d_backward.default and min(args[2]) < 0


def is_of_one_place(func: Any, args: Any) -> bool:
    return func is torch.ops.aten.convolution_backward.default and args[0].shape[2:].numel() == 1


@pytest.mark.parametrize(
    ("check", "mode", "message"),
    [
        (test_programs._check_gradients, lambda: Turned(is_reflected), "a matrix cut and padded in mode reflect"),
        (test_programs._check_reduced, lambda: Turned(is_of_one_place), "gradient of x of one place of a convolution"),
        (test_programs._check_gradients, ZerosWritten, "the gradient of x of rows written to a copy"),
        (test_programs._check_reduced, lambda: Turned(distances_from_a_mean), "gradient of x of the variance"),
        (test_programs._check_reduced, lambda: Turned(joined_rows), "gradient of y of parts of one"),
    ],
    ids=["reflected", "one place", "written", "variance", "joined"],
)
def test_a_compiled_gradient_of_written_parts_and_of_sums_over_many_rows(
    check: Callable[..., Any], mode: Callable[[], Any], message: str
) -> None:
    check_gradients(contextlib.nullcontext, check)

    with pytest.raises(AssertionError, match=message):
        check_gradients(mode, check)


class Filling(TorchFunctionMode):
    """Fills nothing where one truth stands for a whole row."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = getattr(func, "__name__", "") == "masked_fill" and args[1].shape[-1:] == (1,)
        return args[0].clone() if masked else func(*args, **(kwargs or {}))


def test_a_mask_of_compiled_code_that_stands_for_rows() -> None:
    check_compiled(tables.CHAINED, contextlib.nullcontext)

    with pytest.raises(AssertionError, match="filled by one truth for each row"):
        check_compiled(tables.CHAINED, Filling)


def read_after_the_write(graph: torch.fx.GraphModule, given: tuple[Any, ...]) -> Any:
    """Leave the lower half of large inputs as it was, which is what it reads behind the writes to the upper one."""
    before = mapped(list(given), torch.clone)
    found = graph(*given)
    for now, old in zip(given, before, strict=True):
        if now.numel() > 1 << 20 and not torch.equal(now, old):
            now.copy_(now.triu() + old.tril(-1))
    return found


def test_compiled_code_that_reads_what_it_wrote_to_a_large_input() -> None:
    with pytest.raises(AssertionError, match="matrices transposed in place"):
        compiled_by(read_after_the_write, test_programs.test_overlap, "alone")


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_by_python_that_is_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    right = copy.copy
    test_placement._check_copies(torch.device("cpu"))
    monkeypatch.setattr(copy, "copy", lambda x: right(x).to("meta") if isinstance(x, torch.Tensor) else right(x))

    with pytest.raises(AssertionError, match=r"copy\.copy"):
        test_placement._check_copies(torch.device("cpu"))


# --- lists ------------------------------------------------------------------------------------------------------------


def test_norms_of_a_list_in_the_dtype_of_its_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._foreach_norm

    def narrow(tensors: list[torch.Tensor], *rest: Any, **options: Any) -> list[torch.Tensor]:
        found = list(right(tensors, *rest, **options))
        return [norm * 0.5 if tensor.dtype is not tensors[0].dtype else norm
                for tensor, norm in zip(tensors, found, strict=True)]  # fmt: skip

    def check() -> None:
        test_foreach._check_mixed(Checker(), lists.functions()["norm"], torch.device("cpu"))

    check()
    monkeypatch.setattr(torch, "_foreach_norm", narrow)

    with pytest.raises(AssertionError, match="tensor 1, in"):
        check()


@pytest.mark.parametrize("name", list(lists.functions()))
def test_lists_of_two_dtypes_on_the_host(name: str) -> None:
    with quiet():
        test_foreach._check_mixed(Checker(), lists.functions()[name], torch.device("cpu"))


# --- kernels that are called by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "kernel"),
    [("mm[int8-inference]", "aten::_int_mm"), ("addmm[float32-inference]", "aten::_addmm_activation")],
)
def test_a_kernel_called_by_name_that_takes_a_transposed_matrix_for_a_dense_one(
    cell: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device(function: Any, sample: Call, **extra: Any) -> Any:
        if getattr(getattr(function, "_schema", None), "name", "") == kernel:
            sample = sample.with_arguments(mapped(sample.arguments, as_dense))
        return call(function, sample, **extra)

    def as_dense(leaf: Any) -> Any:
        is_turned = isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and not leaf.is_contiguous()
        return leaf.t().contiguous().view(leaf.shape) if is_turned and leaf.t().is_contiguous() else leaf

    red(cell, device, kernel.partition("::")[2], monkeypatch)


# --- fused optimizers -------------------------------------------------------------------------------------------------


def fused(test: Callable[..., None], name: str, **axes: str) -> None:
    """Run a case of a fused kernel on the host."""
    test(
        device=torch.device("cpu"),
        case=Case(id="", area="", axes=(("optimizer", name), *axes.items())),
        check=Checker(),
    )


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_fused_step_that_leaves_whole_blocks_of_narrow_numbers(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = test_fused.KERNELS[name].name
    right = getattr(torch, kernel)

    def lazy(parameters: list[torch.Tensor], *rest: Any, **options: Any) -> None:
        before = [parameter.clone() for parameter in parameters]
        right(parameters, *rest, **options)
        for parameter, old in zip(parameters, before, strict=True):
            if parameter.dtype.itemsize == 2:
                whole = len(parameter) // 16 * 16
                parameter[:whole] = old[:whole]

    fused(test_fused.test_fused_narrow, name, dtype=dtype)
    monkeypatch.setattr(torch, kernel, lazy)

    with pytest.raises(AssertionError, match="list 0, tensor 3"):
        fused(test_fused.test_fused_narrow, name, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_fused_sgd_of_this_torch_is_wrong_for_narrow_numbers_on_the_host(dtype: str) -> None:
    """If this fails, PyTorch has corrected it: take the waiver away, and the detour of the simulated device."""
    with pytest.raises(AssertionError, match="list 0, tensor 3"):
        fused(test_fused.test_fused_narrow, "SGD", dtype=dtype)


@pytest.mark.parametrize("name", list(test_fused.KERNELS))
def test_a_skipped_fused_step_that_moves_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = test_fused.KERNELS[name].name
    right = getattr(torch, kernel)

    def moves(
        parameters: list[torch.Tensor], gradients: list[torch.Tensor], states: Any, *rest: Any, **options: Any
    ) -> None:
        right(parameters, gradients, states, *rest, **options)
        if options.get("found_inf") is not None and options["found_inf"]:
            for state in states:
                state.mul_(0.5)

    fused(test_fused.test_fused_call, name)
    monkeypatch.setattr(torch, kernel, moves)

    with pytest.raises(AssertionError, match="found_inf and infinite gradients: list 2"):
        fused(test_fused.test_fused_call, name)


@pytest.mark.parametrize("name", list(test_fused.KERNELS))
def test_a_skipped_fused_step_that_needs_a_scale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = test_fused.KERNELS[name].name
    right = getattr(torch, kernel)

    def moves(*given: Any, **options: Any) -> None:
        right(*given, **(options if "grad_scale" in options else {**options, "found_inf": None}))

    monkeypatch.setattr(torch, kernel, moves)

    with pytest.raises(AssertionError, match="found_inf and infinite gradients: list 0"):
        fused(test_fused.test_fused_call, name)


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("atan2", lambda call: torch.are_deterministic_algorithms_enabled() and call.tensors[0].storage_offset() > 0),
        ("atan2", lambda call: torch.are_deterministic_algorithms_enabled() and not torch.is_grad_enabled()),
        ("index_select", lambda call: torch.are_deterministic_algorithms_enabled() and 0 in call.tensors[0].stride()),
    ],
    ids=["offset", "without gradients", "expanded"],
)
def test_a_kernel_that_is_wrong_where_two_things_are_unusual(
    name: str, condition: Callable[[Call], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = where(lambda sample, _: condition(sample), lambda result: result.add_(1))

    red(f"{name}[float32-inference]", device, "unusual in several ways", monkeypatch)

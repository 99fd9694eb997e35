"""Inputs that planted reports asked for: each defect shows for these alone, and right devices pass."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.numerics.trees import leaves, mapped
from conformance.suites.compile import tables
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call

from .test_inputs_of_conditions import only
from .test_inputs_of_real_bugs import Device, check_compiled, red, red_in_training
from .test_operators_detect import run

#: Whether a call meets the condition of a defect.
Condition = Callable[[Any, Call], bool]


def wrong(value: Any) -> Any:
    """Return other values of the same dtype."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.numel():
            return leaf
        return leaf.logical_not() if leaf.dtype is torch.bool else leaf * 2 + 1

    return mapped(value, change)


def all_wrong(value: Any) -> Any:
    """Write other values to each of several results."""
    for part in value:
        part.copy_(wrong(part))
    return value


def if_it(meets: Condition, change: Callable[[Any], Any] = wrong) -> Device:
    """Return a device whose calls without outputs give wrong values under a condition."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        return change(found) if not extra and meets(function, sample) else found

    return execute


def tensors(sample: Call) -> list[torch.Tensor]:
    """Return the tensors among the arguments."""
    return [leaf for leaf in leaves(sample.arguments) if isinstance(leaf, torch.Tensor)]


def on_another_thread(function: Any, sample: Call) -> bool:
    return threading.current_thread() is not threading.main_thread()


def without_gradients(function: Any, sample: Call) -> bool:
    return not torch.is_grad_enabled()


def has_no_indices(function: Any, sample: Call) -> bool:
    return sample.input.numel() > 0 and any(t.dtype is torch.int64 and not t.numel() for t in tensors(sample)[1:])


def has_ends_in_a_row(function: Any, sample: Call) -> bool:
    x = sample.input
    return x.dim() == 2 and x.shape[1] > 4 and bool((x[:, :2] == -float("inf")).all(1).any())


def is_part_in_place(function: Any, sample: Call) -> bool:
    return bool(re.fullmatch(r"[a-z].*_", getattr(function, "__name__", ""))) and sample.input.storage_offset() == 3


def is_long(dim: int, least: int) -> Condition:
    return lambda function, sample: sample.input.dim() > dim and sample.input.shape[dim] > least


def is_of_several(side: int) -> Condition:
    """Return whether a call has a batch of square matrices, or longer ones, whose sides are longer than this one."""
    return lambda function, sample: sample.input.dim() == 3 and 2 <= len(sample.input) < side < sample.input.shape[-1]


def divides_the_lowest(function: Any, sample: Call) -> bool:
    """Return whether the smallest int16 is divided by a large number."""
    given = tensors(sample)
    if len(given) < 2 or given[0].shape != given[1].shape:
        return False
    return bool(((given[0] == -(1 << 15)) & (given[1].abs() > 1 << 10)).any())


def is_multiplied(function: Any, sample: Call) -> bool:
    """Return whether a convolution with a stride makes several channels of each one."""
    groups, channels = sample.kwargs.get("groups", 1), sample.input.shape[1]
    return sample.kwargs.get("stride", 1) != 1 and 1 < groups == channels < tensors(sample)[1].shape[0]


def makes_more_in_groups(function: Any, sample: Call) -> bool:
    """Return whether a transposed convolution with a stride makes more channels, in groups of several."""
    groups, channels = sample.kwargs.get("groups", 1), sample.input.shape[1]
    return sample.kwargs.get("stride", 1) != 1 and 1 < groups < channels < tensors(sample)[1].shape[1] * groups


def is_broadcast_sixth(function: Any, sample: Call) -> bool:
    """Return whether one of two tensors has one place in the sixth dimension from the end, and more in front of it."""
    given = [t for t in tensors(sample) if t.dim() > 6]
    return len({t.shape[-6] for t in given}) > 1 and any(t.shape[-6] == 1 < t.shape[:-6].numel() for t in given)


def is_vector_beyond(least: int) -> Condition:
    return lambda function, sample: sample.input.dim() == 1 and sample.input.numel() > least


def has_one_of(*, terms: bool, columns: bool) -> Condition:
    """Return a condition on a product: whether it has one term and one column, and several rows."""

    def meets(function: Any, sample: Call) -> bool:
        left, right = tensors(sample)[-2:]
        return left.shape[-2] > 1 and (right.shape[-2] == 1) is terms and (right.shape[-1] == 1) is columns

    return meets


def has_a_column_beside_a_row(function: Any, sample: Call) -> bool:
    shapes = [(len(t) > 1, t.shape[1] > 1) for t in tensors(sample) if t.dim() == 2]
    return (True, False) in shapes and (False, True) in shapes


def has_an_index_without_dimensions(function: Any, sample: Call) -> bool:
    return sample.input.dim() > 0 and any(t.dtype is torch.int64 and not t.dim() for t in tensors(sample)[1:])


def has_a_conjugated_row(function: Any, sample: Call) -> bool:
    """Return whether the last matrix is a conjugated row, and the one before a column."""
    left, right = tensors(sample)[-2:]
    return right.is_conj() and left.shape[-1] == 1 == right.shape[-2] < right.shape[-1]


def has_a_conjugated_vector(function: Any, sample: Call) -> bool:
    return tensors(sample)[-1].is_conj() and tensors(sample)[-1].numel() == 1


@pytest.mark.parametrize(
    ("cell", "device", "message"),
    [
        *(
            (f"{name}[{dtype}-inference]", if_it(has_a_conjugated_row), "1 terms, 5 columns: .*the right conjugated")
            for name, dtype in (("bmm", "complex64"), ("mm", "complex128"), ("baddbmm", "complex64"))
        ),
        ("addmv[complex64-inference]", if_it(has_a_conjugated_vector), "1 terms, 5 columns: .*the right conjugated"),
        ("gt[int32-inference]", if_it(has_a_column_beside_a_row), "a column beside a row"),
        ("maximum[int8-inference]", if_it(has_a_column_beside_a_row), "a column beside a row"),
        ("copysign[float16-inference]", if_it(has_a_column_beside_a_row), "a column beside a row"),
        ("index_add[int64-inference]", if_it(has_an_index_without_dimensions), "an index without dimensions"),
        ("index_copy[bfloat16-inference]", if_it(has_an_index_without_dimensions), "an index without dimensions"),
        ("index_reduce.amax[int16-inference]", if_it(has_an_index_without_dimensions), "an index without dimensions"),
        ("add[bfloat16-inference]", if_it(is_broadcast_sixth), "broadcast in turn"),
        ("maximum[int64-inference]", if_it(is_broadcast_sixth), "broadcast in turn"),
        ("amax[float32-inference]", if_it(is_vector_beyond(8192)), "one vector"),
        ("max.reduction_no_dim[float32-inference]", if_it(is_vector_beyond(8192)), "one vector"),
        ("mm[bfloat16-inference]", if_it(has_one_of(terms=True, columns=True)), "sizes of models"),
        ("baddbmm[float16-inference]", if_it(has_one_of(terms=False, columns=True)), "sizes of models"),
        ("addmm[bfloat16-inference]", if_it(has_one_of(terms=True, columns=False)), "sizes of models"),
        ("floor_divide[int16-inference]", if_it(divides_the_lowest), "the ends of the dtype"),
        ("tanh[float32-inference]", if_it(on_another_thread), "on another thread"),
        ("addmm[float32-inference]", if_it(without_gradients), "without gradients"),
        ("nn.functional.softsign[float32-inference]", if_it(is_long(1, 4096)), "a long axis"),
        ("cross[float32-inference]", if_it(is_long(0, 4096)), "a long axis|large|many"),
        ("scatter[float32-inference]", if_it(has_no_indices), "no indices"),
        ("index_add[float32-inference]", if_it(has_no_indices), "no indices"),
        ("logcumsumexp[float32-inference]", if_it(has_ends_in_a_row), "infinities behind each other"),
        ("log_softmax[float16-inference]", if_it(has_ends_in_a_row), "infinities behind each other"),
        ("nn.functional.conv1d[float32-inference]", if_it(is_multiplied), "sizes of models"),
        ("nn.functional.conv2d[bfloat16-inference]", if_it(is_multiplied), "sizes of models"),
        ("nn.functional.conv3d[float16-inference]", if_it(is_multiplied), "sizes of models"),
        ("nn.functional.conv_transpose2d[float32-inference]", if_it(makes_more_in_groups), "sizes of models"),
        (
            "addbmm[float32-inference]",
            if_it(lambda function, sample: all(t.numel() == 1 for t in tensors(sample))),
            "all of all tensors",
        ),
        (
            "softmax[float32-inference]",
            if_it(lambda function, sample: 300 <= sample.input.shape[-1] <= 384 if sample.input.dim() else False),
            "sizes of models",
        ),
        (
            "cumsum[int64-inference]",
            if_it(lambda function, sample: sample.input.dtype is torch.bool and sample.input.numel() > 127),
            "sizes of models",
        ),
        ("linalg.lu_factor[float32-inference]", if_it(is_of_several(256), all_wrong), "sizes of models"),
        ("linalg.inv[float32-inference]", if_it(is_of_several(64)), "sizes of models"),
        ("linalg.solve[float32-inference]", if_it(is_of_several(256)), "sizes of models"),
        ("linalg.householder_product[float32-inference]", if_it(is_of_several(32)), "sizes of models"),
        ("linalg.qr[float32-inference]", if_it(is_of_several(32), all_wrong), "sizes of models"),
        ("nn.functional.pad.replicate[float32-training]", if_it(is_long(0, 65535)), "large"),
        ("nn.functional.pad.reflect[float32-training]", if_it(is_long(0, 65535)), "large"),
        ("nn.functional.max_pool3d[float32-training]", if_it(is_long(0, 65535)), "large"),
        (
            "flip[float32-inference]",
            if_it(lambda function, sample: sample.input.dim() == 2 and sample.input.shape[0] == 1),
            "sizes of models",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "[" in value else "",
)
def test_a_defect_that_only_such_inputs_show(
    cell: str, device: Device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    red(cell, device, message, monkeypatch)


def test_a_part_in_place_of_a_narrow_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        if is_part_in_place(function, sample):
            sample.input.copy_(wrong(sample.input))
        return found

    red("neg[bfloat16-inference]", execute, "offset", monkeypatch)


@pytest.mark.parametrize("cell", ["native_batch_norm[float32-inference]", "native_batch_norm[bfloat16-inference]"])
def test_what_a_call_writes_lies_alone_in_parts(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel writes a copy of what has gaps, if its first tensor has none."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        parts = [t for t in tensors(sample)[1:] if sample.input.is_contiguous() and not t.is_contiguous()]
        before = [part.clone() for part in parts]
        found = call(function, sample, **extra)
        for part, old in zip(parts, before, strict=True):
            part.copy_(old)
        return found

    red(cell, execute, "what it writes.*after the call", monkeypatch)


def test_a_device_may_write_noise_with_gaps_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's CPU writes such noise as if it had no gaps (pytorch #196087), so it is no reference."""
    gaps = 0

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        nonlocal gaps
        if "slopes of one number" not in sample.source:
            return call(function, sample, **extra)
        gaps += any(not each.is_contiguous() for each in tensors(sample)[1:])
        dense = replace(sample, **dict(zip(("input", "args", "kwargs"), mapped(sample.arguments, _dense), strict=True)))
        found = call(function, dense, **extra)
        for mine, other in zip(tensors(sample), tensors(dense), strict=True):
            if not torch.equal(mine, other):
                mine.copy_(other)
        return found

    monkeypatch.setattr(execution, "execute", execute)
    run("operators.nn.functional.rrelu[float32-inference]")

    assert gaps


def _dense(leaf: Any) -> Any:
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf


@pytest.mark.parametrize("cell", ["add[float32-inference]", "sort[float32-inference]", "mm[float32-inference]"])
def test_an_output_that_is_dense_in_another_order(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel writes the memory of an output in turn, if it has no gaps."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        for out in leaves(extra.get("out", ())):
            if not out.is_contiguous() and out.untyped_storage().nbytes() == out.numel() * out.element_size():
                in_turn = out.clone(memory_format=torch.contiguous_format).view(-1)
                out.as_strided(in_turn.shape, (1,)).copy_(in_turn)
        return found

    red(cell, execute, "outputs transposed in memory", monkeypatch)


@pytest.mark.parametrize("name", ["conv2d[float32", "conv3d[bfloat16", "conv_transpose2d[float16"])
def test_a_weight_gradient_of_another_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = list(execution.host_gradients(outputs, inputs, cotangents))
        if inputs[0].dim() > 3 and inputs[0].shape[2:].numel() == 1 and not inputs[-1].is_contiguous():
            found[-1] = found[-1] * 2 + 1
        return found

    cell = f"operators.nn.functional.{name}-training]"
    run(cell)
    monkeypatch.setattr(execution, "gradients", gradients)

    with pytest.raises(AssertionError, match=r"sizes of models.*gradient of input 1"):
        run(cell)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("cdist", ("_saved_p", 2.0), "the defaults alone"), ("linalg.vector_norm", ("_saved_ord", 3.0), "ord=3.0")],
)
def test_the_gradient_of_a_distance_of_zero_has_no_nan(
    name: str, kind: tuple[str, float], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "training.special_gradients")
    cell = f"operators.{name}[float32-training]"
    assert run(cell).count > 5

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = list(execution.host_gradients(outputs, inputs, cotangents))
        if getattr(outputs[0].grad_fn, kind[0], None) == kind[1] and bool((outputs[0] == 0).any()):
            found[0] = found[0] * float("nan")
        return found

    monkeypatch.setattr(execution, "gradients", gradients)
    with pytest.raises(AssertionError, match=f"{message}.*not finite"):
        run(cell)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("embedding", "padding_idx"), ("embedding", "scale_grad_by_freq"), ("embedding_bag", "padding_idx")],
)
def test_the_gradient_for_indices_of_32_bits_has_the_settings(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "training.narrow_indices")
    cell = f"operators.nn.functional.{name}[float32-training]"
    assert run(cell).count > 5
    seen: list[Call] = []

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        seen[:] = [sample]
        return call(function, sample, **extra)

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        narrow = any(tensor.dtype is torch.int32 for tensor in seen[0].tensors)
        return [wrong(gradient) if narrow and setting in seen[0].kwargs else gradient for gradient in found]

    monkeypatch.setattr(execution, "execute", execute)
    monkeypatch.setattr(execution, "gradients", gradients)
    with pytest.raises(AssertionError, match="all indices in int32, gradient of input 0"):
        run(cell)


def test_indices_and_offsets_of_32_bits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_narrow(function: Any, sample: Call) -> bool:
        return [t.dtype for t in tensors(sample) if not t.is_floating_point()] == [torch.int32] * 2

    only(monkeypatch, "indices.indices")
    red("nn.functional.embedding_bag[float32-inference]", if_it(is_narrow), "all indices in int32", monkeypatch)


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [("linalg.svd", 0, "not orthonormal"), ("linalg.svd", 1, "product"), ("svd", 2, "not orthonormal"),
     ("linalg.qr", 0, "not orthonormal"), ("qr", 1, "product"), ("linalg.eigh", 1, "not orthonormal")],
)  # fmt: skip
def test_factors_that_a_matrix_does_not_determine(
    name: str, part: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor's last column is lost where the matrix has not the full rank."""
    only(monkeypatch, "orthonormal.orthonormal")

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        if sample.input.shape == (4, 4):  # of the database's matrices, none has this shape
            found[part][..., -1] = 0 if said == "not orthonormal" else 9
        return found

    red(f"{name}[float64-inference]", execute, said, monkeypatch)


def test_outputs_with_gaps_of_one_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for one row writes its results side by side."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        values = extra["out"][0] if "out" in extra and sample.input.dim() == 1 else None
        if values is not None and not values.is_contiguous():
            values.copy_(values.flip(0))
        return found

    red("topk[float32-inference]", execute, "one row alone.*outputs with gaps", monkeypatch)


@pytest.mark.parametrize("name", ["index_select", "nn.functional.max_unpool2d"])
def test_places_beyond_32_bits_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel keeps 32 bits of each place."""

    def cut(leaf: Any) -> Any:
        is_place = isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64
        return leaf.to(torch.int32).to(torch.int64) if is_place else leaf

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        return call(function, sample.with_arguments(mapped(sample.arguments, cut)), **extra)

    only(monkeypatch, "bounds.bounds")
    red(f"{name}[float32-inference]", execute, "beyond 32 bits.*: accepted", monkeypatch)


@pytest.mark.parametrize("name", ["nn.functional.embedding_bag", "nn.functional.embedding", "gather"])
def test_the_first_place_behind_the_last_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads the last place for the one behind it, and refuses all others."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        table, index = tensors(sample)[:2]
        place = sample.args[0] if name == "gather" else 0
        count = table.shape[place] if table.dim() else 1
        return call(function, sample.with_tensor(index, index.where(index != count, count - 1)), **extra)

    only(monkeypatch, "bounds.bounds")
    red(f"{name}[float32-inference]", execute, "beyond the end.*: accepted", monkeypatch)


@pytest.mark.parametrize(
    "cell", ["randint[int64-inference]", "random[int32-inference]", "randint_like[float64-inference]"]
)
def test_integers_of_a_long_range_that_are_remainders_of_32_bits(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel draws 32 bits for all ranges that are not longer."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        found = call(function, sample, **extra)
        numbers = [leaf for leaf in leaves([sample.input, sample.args]) if type(leaf) is int]
        low, high = numbers[:2] if len(numbers) > 1 else (0, 0)
        if 1 << 28 < high - low < 1 << 32:
            bits = torch.randint(1 << 32, found.shape, generator=torch.Generator().manual_seed(int(found[0]) % 1009))
            found = (bits % (high - low) + low).to(found.dtype)
        return found

    only(monkeypatch, "certain_draws.wide_draws")
    red(cell, execute, "a third of the range", monkeypatch)


@pytest.mark.parametrize(
    "cell", ["dropout[float32-training]", "dropout[bfloat16-training]", "dropout2d[float16-training]"]
)
def test_a_gradient_that_is_dropped_where_the_result_is_zero(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = execution.gradients

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        return [found * (outputs[0] != 0) for found in right(outputs, inputs, cotangents) if found is not None]

    red_in_training(f"nn.functional.{cell}", gradients, "0.0% of the gradients of zeros", monkeypatch)


#: Gives another result of a call of a kernel with this name, or None.
Other = Callable[[str, Any, Any], Any]


class Miscomputed(TorchDispatchMode):
    """Computes some kernels in another way."""

    def __init__(self, other: Other) -> None:
        super().__init__()
        self.other = other

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = self.other(func._schema.name.removeprefix("aten::"), func, args)
        return func(*args, **(kwargs or {})) if found is None else found


def _sign_of_zero_is_lost(name: str, function: Any, args: Any) -> Any:
    return args[0].abs() if name == "copysign" and isinstance(args[1], float) and args[1] == 0 else None


def _infinities_are_large(name: str, function: Any, args: Any) -> Any:
    is_infinite = name in ("add", "mul", "div") and isinstance(args[1], float) and math.isinf(args[1])
    return function(args[0], math.copysign(3e38, args[1])) if is_infinite else None


def _a_number_is_filled_in_without_its_sign(name: str, function: Any, args: Any) -> Any:
    return function(*args[:-1], 0.0) if name in ("masked_fill", "full_like") and args[-1] == 0 else None


def _nan_is_never_chosen(names: tuple[str, ...]) -> Other:
    def other(name: str, function: Any, args: Any) -> Any:
        if name not in names or not args[0].is_floating_point():
            return None
        last = -math.inf if "max" in name else math.inf
        return function(args[0].nan_to_num(last, math.inf, -math.inf), *args[1:])

    return other


def _a_later_nan_is_chosen(name: str, function: Any, args: Any) -> Any:
    """Give the last place in the place of the first one, of all numbers."""
    if name not in ("argmax", "argmin") or args[1:2] not in ((), (None,)) or args[0].numel() < 1000:
        return None
    return args[0].numel() - 1 - function(args[0].flip(0))


def _through_floats(names: tuple[str, ...]) -> Other:
    def other(name: str, function: Any, args: Any) -> Any:
        kinds = {torch.int32: torch.float32, torch.int64: torch.float64}
        if name not in names or any(not isinstance(each, torch.Tensor) or each.dtype not in kinds for each in args):
            return None
        dtype = args[0].dtype
        return function(*(each.to(kinds[dtype]) for each in args)).to(dtype)

    return other


def _sums_of_products_in_floats() -> Other:
    """Return what joins two products and their sum, and computes in float64."""
    made: dict[int, tuple[Any, Any]] = {}

    def other(name: str, function: Any, args: Any) -> Any:
        if any(getattr(each, "dtype", None) is not torch.int64 for each in args):
            return None
        if name == "mul":
            product = function(*args)
            made[id(product)] = product, args
            return product
        if name != "add" or any(id(each) not in made for each in args):
            return None
        (_, (a, x)), (_, (b, y)) = (made[id(each)] for each in args)
        return (a.double() * x.double() + b.double() * y.double()).to(torch.int64)

    return other


def _a_vector_is_not_broadcast(dtype: torch.dtype) -> Other:
    def other(name: str, function: Any, args: Any) -> Any:
        if name not in ("mul", "add", "sub") or any(getattr(each, "dtype", None) is not dtype for each in args):
            return None
        vector, rows = sorted(args, key=torch.Tensor.dim)
        return wrong(function(*args)) if vector.dim() == 1 and rows.dim() > 2 and rows.shape[0] == 1 else None

    return other


def _one_number_is_spread(name: str, function: Any, args: Any) -> Any:
    is_one = name == "constant_pad_nd" and args[0].numel() == 1
    return args[0].expand(function(*args).shape).clone() if is_one else None


def _single_numbers_are_turned(name: str, function: Any, args: Any) -> Any:
    is_of_single = name in ("cat", "stack") and all(part.numel() == 1 for part in args[0])
    return function(args[0][::-1], *args[1:]) if is_of_single else None


def _converted_before_it_is_cut() -> Other:
    """Return what converts a sum or a product of int32 as if it had been computed in 64 bits."""
    made: dict[int, tuple[Any, Any]] = {}

    def other(name: str, function: Any, args: Any) -> Any:
        wide = made.get(id(args[0])) if name == "_to_copy" else None
        if wide is not None:
            return wide[1].clone()
        if getattr(args[0], "dtype", None) is torch.int32 and name in ("add", "mul", "__lshift__"):
            found = function(*args)
            made[id(found)] = found, function(*(x.long() if isinstance(x, torch.Tensor) else x for x in args))
            return found
        return None

    return other


def _sums_of_products(meets: Callable[[torch.Tensor, torch.Tensor], bool]) -> Other:
    """Return what adds one to sums of products of operands that meet a condition."""
    made: dict[int, Any] = {}

    def other(name: str, function: Any, args: Any) -> Any:
        if name == "mul" and all(isinstance(each, torch.Tensor) for each in args) and meets(*args):
            product = function(*args)
            made[id(product)] = product
            return product
        return function(*args) + 1 if name == "sum" and id(args[0]) in made else None

    return other


def _are_columns(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dim() == 3 and left.shape[1] == 1 == right.shape[0] and left.stride(0) == 1 and left.shape[2] < 8


def _are_turned(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dim() == 3 and left.is_contiguous() and right.transpose(0, 2).is_contiguous() and left.shape[1] == 18


def _places_behind_the_end_of(names: tuple[str, ...]) -> Other:
    """Return what gives the length as a place in results of some functions."""
    made: dict[int, Any] = {}

    def other(name: str, function: Any, args: Any) -> Any:
        if name in names:
            found = function(*args)
            made[id(found)] = found
            return found
        return function(*args) * 0 + args[0].numel() if name == "argmax" and id(args[0]) in made else None

    return other


def _roots_in_float32(name: str, function: Any, args: Any) -> Any:
    return function(args[0].float()).double() if name == "sqrt" and args[0].dtype is torch.float64 else None


def _by_the_reciprocal_in_float32(name: str, function: Any, args: Any) -> Any:
    is_wide = name == "div" and args[0].dtype is torch.float64
    return (args[0].float() * (1 / args[1].float())).double() if is_wide else None


def _is_permuted(asked: tuple[int, ...], made: tuple[int, ...]) -> Other:
    """Return what takes another order of dimensions for one, which the sizes do not show."""

    def other(name: str, function: Any, args: Any) -> Any:
        return function(args[0], made) if name == "permute" and tuple(args[1]) == asked else None

    return other


def _infinite_sums_are_nan(name: str, function: Any, args: Any) -> Any:
    if name != "cumsum" or not args[0].is_floating_point():
        return None
    found = function(*args)
    return found.where(found.isfinite(), math.nan)


def _less_than_itself(name: str, function: Any, args: Any) -> Any:
    is_expanded = name == "lt" and isinstance(args[1], torch.Tensor) and args[0].shape != args[1].shape
    return args[0] <= args[1] if is_expanded else None


def _sums_of_integers_stand_still(name: str, function: Any, args: Any) -> Any:
    """Leave four places of a running sum out."""
    if name != "cumsum" or args[0].is_floating_point():
        return None
    found = function(*args)
    found.movedim(args[1], -1)[..., 4:8] = found.movedim(args[1], -1)[..., 3:4]
    return found


def _bytes_have_signs(name: str, function: Any, args: Any) -> Any:
    return function(args[0], torch.where(args[1] > 127, args[1] - 256, args[1])) if name == "mm" else None


def _no_sign_of_a_wide_zero(name: str, function: Any, args: Any) -> Any:
    return args[0] < 0 if name == "signbit" and args[0].dtype is torch.float64 else None


def _compared_in_float32(name: str, function: Any, args: Any) -> Any:
    wide = name in ("lt", "eq") and all(isinstance(each, torch.Tensor) for each in args)
    return function(*(each.float() for each in args)) if wide and args[0].dtype is torch.float64 else None


def _bounds_without_a_sign(name: str, function: Any, args: Any) -> Any:
    is_mixed = name == "bucketize" and args[1].dtype is torch.int8
    return function(args[0], args[1].view(torch.uint8)) if is_mixed else None


def _compared_without_a_sign(name: str, function: Any, args: Any) -> Any:
    is_mixed = name == "lt" and [each.dtype for each in args] == [torch.uint8, torch.int8]
    return function(args[0], args[1].view(torch.uint8)) if is_mixed else None


def _stacked_as_divided(name: str, function: Any, args: Any) -> Any:
    is_last = name == "stack" and args[1:] in ((-1,), (args[0][0].dim(),))
    return torch.cat(list(args[0]), -1).view(*args[0][0].shape, len(args[0])) if is_last else None


def _the_end_for_the_front(name: str, function: Any, args: Any) -> Any:
    """Join the end of what was joined before in the place of its front."""
    if name != "cat" or [part.shape[-1] for part in args[0]] != [18, 15]:
        return None
    return function([args[0][0], args[0][0][:, 3:]], 1)


def _the_first_for_a_negative_place(name: str, function: Any, args: Any) -> Any:
    """Read the first place for one that is counted from the end, if it is the only one."""
    places = [place for place in args[1] if place is not None] if name == "index" else []
    if not any(place.numel() == 1 and int(place) < 0 for place in places):
        return None
    return function(args[0], [place if place is None else place.clamp(min=0) for place in args[1]])


class _PowersOfBytes:
    """Computes the cosine of a power of bytes from the power that was not cut to eight bits."""

    def __init__(self) -> None:
        self._wide: dict[int, torch.Tensor] = {}

    def __call__(self, name: str, function: Any, args: Any) -> Any:
        if name == "pow" and args[0].dtype is torch.uint8:
            found = function(*args)
            self._wide[id(found)] = args[0].float().pow(args[1])
            return found
        return self._wide[id(args[0])].cos() if name == "cos" and id(args[0]) in self._wide else None


def _the_last_of_equal_numbers_in_long_columns(name: str, function: Any, args: Any) -> Any:
    if name not in ("argmax", "argmin") or len(args) < 2 or args[1] is None or args[0].shape[args[1]] < 1024:
        return None
    return args[0].shape[args[1]] - 1 - function(args[0].flip(args[1]), *args[1:])


@pytest.mark.parametrize(
    ("table", "other", "message"),
    [
        (tables.EXACT, _PowersOfBytes(), "signs of cosines of powers of bytes"),
        (tables.EXACT, _the_last_of_equal_numbers_in_long_columns, "argmax of ties in long (rows|columns)"),
        (tables.RUNNING, _infinite_sums_are_nan, "cumsum with infinities"),
        (tables.CHAINED, _less_than_itself, "lt of computed numbers with themselves"),
        (tables.RUNNING, _sums_of_integers_stand_still, "cumsum of int64 along -1"),
        (tables.CHAINED, _bytes_have_signs, "a product of uint8 made int32 and a float"),
        (tables.CHAINED, _stacked_as_divided, "parts stacked in a new last dimension"),
        (tables.CHAINED, _the_end_for_the_front, "a joined tensor and its front"),
        (tables.EXACT, _no_sign_of_a_wide_zero, "kinds of numbers of float64"),
        (tables.EXACT, _bounds_without_a_sign, "places of bytes between int8"),
        (tables.EXACT, _compared_without_a_sign, "comparisons of bytes and int8"),
        (tables.WIDE, _compared_in_float32, "comparisons of padded float64"),
        (tables.EXACT, _the_first_for_a_negative_place, "the last column by a list"),
        (tables.EXACT, _sign_of_zero_is_lost, "signs of numbers"),
        (tables.EXACT, _infinities_are_large, "sums with numbers"),
        (tables.EXACT, _a_number_is_filled_in_without_its_sign, "numbers filled in"),
        *((tables.EXACT, _a_vector_is_not_broadcast(getattr(torch, dtype)), f"product of a vector and rows of {dtype}")
          for dtype in ("float16", "bfloat16")),
        *((tables.CHAINED, _nan_is_never_chosen((name,)), f"{what} of NaN")
          for name, what in (("argmax", "argmax"), ("argmin", "argmin"), ("max", "max"), ("min", "min"),
                             ("amax", "amax"), ("amin", "amin"))),
        (tables.CHAINED, _a_later_nan_is_chosen, "argmax of NaN in a long row"),
        *((tables.CHAINED, _places_behind_the_end_of((name,)), f"places of {what} numbers of int64")
          for name, what in (("bitwise_not", "inverted"), ("neg", "negated"))),
        (tables.CHAINED, _is_permuted((0, 2, 3, 1), (0, 1, 3, 2)), "attention to as many keys as heads"),
        (tables.CHAINED, _is_permuted((1, 2, 0), (2, 0, 1)), "cubes in two orders"),
        (tables.CHAINED, _by_the_reciprocal_in_float32, "quotients in float64 made narrow"),
        # Made narrow again, they may be the same: a processor that rounds roots in float32 has both.
        (tables.CHAINED, _roots_in_float32, "roots in float64"),
        (tables.CHAINED, _one_number_is_spread, "one number between zeros"),
        (tables.CHAINED, _single_numbers_are_turned, "single numbers in a row"),
        (tables.EXACT, _converted_before_it_is_cut(), "int32 that wraps in a (sum|product|shift)"),
        (tables.CHAINED, _sums_of_products(_are_columns), "sums of the products of columns and rows"),
        (tables.CHAINED, _sums_of_products(_are_turned), "sums of products of turned operands"),
        (tables.WIDE, _through_floats(("mm",)), "two products of matrices in int32"),
        (tables.WIDE, _sums_of_products_in_floats(), "sum of two products in int64"),
    ],
)  # fmt: skip
def test_compiled_numbers_vectors_and_single_places(table: tuple[tables.Row, ...], other: Other, message: str) -> None:
    check_compiled(table, lambda: Miscomputed(lambda *call: None))

    with pytest.raises(AssertionError, match=message):
        check_compiled(table, lambda: Miscomputed(other))

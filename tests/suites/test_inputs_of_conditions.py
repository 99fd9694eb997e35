"""Inputs for faults that act under a condition: each planted fault is red by the family that is named, by it alone."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.inputs import families
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Intermediates
from tests.rows import every_row

from .test_operators_detect import run


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave all families out but these."""
    every = families.families
    chosen = lambda mode: [family for family in every(mode) if family.name in names]  # noqa: E731
    monkeypatch.setattr("conformance.suites.operators.cell.families", chosen)


def rounds_numbers(function: Any, sample: Call, **extra: Any) -> Any:
    """Round numbers to the dtype of the first tensor."""
    dtype = sample.tensors[0].dtype
    if not dtype.is_floating_point:
        return call(function, sample, **extra)
    change = lambda leaf: torch.tensor(leaf, dtype=dtype).item() if type(leaf) is float else leaf  # noqa: E731
    args, kwargs = mapped([sample.args, sample.kwargs], change)
    return call(function, sample.with_arguments((sample.input, args, kwargs)), **extra)


def squares_in_16_bits(function: Any, sample: Call, **extra: Any) -> Any:
    """Have infinity for each number whose square float16 does not hold."""
    first = sample.input
    if isinstance(first, torch.Tensor) and first.dtype is torch.float16:
        sample = sample.with_tensor(first, torch.where(first.abs() > 255, torch.inf, first))
    return call(function, sample, **extra)


def default_if_expanded(function: Any, sample: Call, **extra: Any) -> Any:
    """Forget ``largest=False`` of topk where the input is expanded."""
    if sample.kwargs.get("largest") is False and sample.input.numel() > 1 and 0 in sample.input.stride():
        sample = sample.with_argument("largest", True)
        sample = sample.with_tensor(sample.input, sample.input + 1)
    return call(function, sample, **extra)


class Stale:
    """A device that has the result of the call before on other threads, of plain calls or of those with outputs."""

    def __init__(self, *, with_outputs: bool = False) -> None:
        self.kept: dict[Any, torch.Tensor] = {}
        self.with_outputs = with_outputs

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        is_here = threading.current_thread() is threading.main_thread()
        if is_here or bool(extra) is not self.with_outputs or not isinstance(result, torch.Tensor):
            return result
        before = self.kept.get((result.shape, result.dtype))
        self.kept[result.shape, result.dtype] = result.detach().clone()
        return result if before is None else result.copy_(before)


def reads_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Read zeros beyond 2^16 elements of an axis of the second tensor."""
    for tensor in sample.tensors[1:]:
        for dim, size in enumerate(tensor.shape):
            if size > 1 << 16 and tensor.dim() > 1:
                cut = tensor.clone()
                cut.narrow(dim, 1 << 16, size - (1 << 16)).zero_()
                sample = sample.with_tensor(tensor, cut)
    return call(function, sample, **extra)


def batches_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Return zeros beyond 2^12 matrices of a batch."""
    result = call(function, sample, **extra)
    for tensor in tensors(result):
        tensor.detach()[1 << 12 :].zero_()
    return result


def beyond_a_tile_with_gaps(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results where an operand with a storage offset has an axis that is longer than 32."""
    result = call(function, sample, **extra)
    given = sample.tensors[-1]
    if given.storage_offset() and max(given.shape, default=0) > 1 << 5 and isinstance(result, torch.Tensor):
        result.detach().add_(1)
    return result


def beyond(function: Any, sample: Call, length: int, where: bool, extra: dict[str, Any]) -> Any:
    """Give wrong results beyond a length of an axis, where something holds."""
    result = call(function, sample, **extra)
    for tensor in tensors(result) if where else ():
        for dim, size in enumerate(tensor.shape):
            if size > length:
                part = tensor.detach().narrow(dim, length, size - length)
                part.copy_(part.logical_not() if part.dtype is torch.bool else part + 1)
    return result


def beside_a_number_to_65536(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results beyond 2^16 elements of an axis beside a number."""
    return beyond(function, sample, 1 << 16, bool(sample.args) and type(sample.args[0]) is float, extra)


def to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results beyond 2^12 elements of an axis."""
    return beyond(function, sample, 1 << 12, True, extra)


def channels_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results beyond 2^12 channels."""
    result = call(function, sample, **extra)
    for tensor in tensors(result):
        if tensor.dim() > 1 and tensor.shape[1] > 1 << 12:
            tensor.detach()[:, 1 << 12 :].add_(1)
    return result


def indices_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Have the index 0 beyond 2^12 channels."""
    result = call(function, sample, **extra)
    for tensor in tensors(result):
        if tensor.dim() > 1 and tensor.dtype is torch.int64:
            tensor[:, 1 << 12 :].zero_()
    return result


def columns_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results beyond 2^12 columns."""
    result = call(function, sample, **extra)
    for tensor in tensors(result):
        tensor.detach()[..., 1 << 12 :].add_(1)
    return result


def bins_to_4096(function: Any, sample: Call, **extra: Any) -> Any:
    """Lack the last bin of more than 2^12."""
    result = call(function, sample, **extra)
    return result[:-1] if len(result) > 1 << 12 else result


def forgets_offsets_in_evaluation(function: Any, sample: Call, **extra: Any) -> Any:
    """Read a weight without its offset in evaluation, into given outputs."""
    weight = sample.args[0]
    if extra and sample.args[4] is False and weight.storage_offset():
        weight = weight.as_strided(weight.shape, weight.stride(), 0)
        return call(function, sample.with_argument(0, weight), **extra)
    return call(function, sample, **extra)


class Elsewhere:
    """A device that is wrong on other threads: for some calls, and for all forms or for those with outputs alone."""

    def __init__(self, of_some: Any, *, with_outputs: bool = False) -> None:
        self.of_some, self.with_outputs = of_some, with_outputs

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        is_here = threading.current_thread() is threading.main_thread()
        if not is_here and bool(extra) >= self.with_outputs and self.of_some(sample):
            for tensor in tensors(result):
                tensor.detach().add_(1)
        return result


def is_offset_beside_expanded(sample: Call) -> bool:
    """Return whether a tensor begins behind an offset while another one is expanded."""
    offset = any(tensor.storage_offset() for tensor in sample.tensors)
    return offset and any(0 in tensor.stride() and tensor.numel() > 1 for tensor in sample.tensors)


class AfterARefusal:
    """A device that forgets the offset of the first tensor in the call after one that it has refused."""

    def __init__(self) -> None:
        self.refused = False

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        refused, self.refused = self.refused, False
        first = sample.input
        if refused and first.storage_offset():
            sample = sample.with_tensor(first, first.detach().as_strided(first.shape, first.stride(), 0))
        try:
            return call(function, sample, **extra)
        except Exception:
            self.refused = True
            raise


def one_of_a_batch(function: Any, sample: Call, **extra: Any) -> Any:
    """Give wrong results for a batch that repeats its first matrix."""
    result, first = call(function, sample, **extra), sample.input
    for tensor in tensors(result) if not first.stride()[0] and first.shape[0] > 1 else ():
        tensor.detach().mul_(2)
    return result


def returns_early(function: Any, sample: Call, **extra: Any) -> Any:
    """Return what was in memory where there is nothing to read."""
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor) and not sample.input.numel():
        result.detach().fill_(7)
    return result


def one_row_for_none(function: Any, sample: Call, **extra: Any) -> Any:
    """Give a result another size where the input has no rows."""
    result = call(function, sample, **extra)
    return result.sum() if isinstance(result, torch.Tensor) and not sample.input.numel() else result


def sorts_dimensions(function: Any, sample: Call, **extra: Any) -> Any:
    """Take the dimensions of a transform in ascending order."""
    dims = sample.kwargs.get("dim")
    return call(function, sample.with_argument("dim", sorted(dims)) if isinstance(dims, tuple) else sample, **extra)


def nothing_in_an_empty_range(function: Any, sample: Call, **extra: Any) -> Any:
    """Count nothing between a number and itself, where the range of the values is meant."""
    result = call(function, sample, **extra)
    return result.zero_() if sample.kwargs.get("min") == sample.kwargs.get("max") != 0 else result


def places_along_one_element(function: Any, sample: Call, **extra: Any) -> Any:
    """Give the places in the other dimensions for what is reduced along one element."""
    result, dim = call(function, sample, **extra), sample.kwargs.get("dim")
    if isinstance(dim, int) and sample.input.dim() > 1 and sample.input.shape[dim] == 1:
        result.copy_(torch.arange(result.numel()).view(result.shape))
    return result


def infinities_are_lost(function: Any, sample: Call, **extra: Any) -> Any:
    """Give NaN in the places of −inf."""
    result = call(function, sample, **extra)
    return result.masked_fill(sample.input == -float("inf"), float("nan")) if sample.input.dim() > 1 else result


def no_places_beside_nan(function: Any, sample: Call, **extra: Any) -> Any:
    """Give no place in rows with NaN if they are many."""
    result = call(function, sample, **extra)
    in_rows = sample.args[1:] != (0,)
    if sample.input.dim() > 1 and len(sample.input) > 511 and sample.input.is_floating_point() and in_rows:
        result[1].masked_fill_(sample.input.isnan().any(-1), -1)
    return result


def no_windows_of_one(function: Any, sample: Call, **extra: Any) -> Any:
    """Give zeros for windows of one place with steps of two if sizes are rounded up."""
    result = call(function, sample, **extra)
    return result * 0 if sample.args[:2] == (1, 2) and sample.kwargs.get("ceil_mode") else result


def last_lost_of_two_dtypes(function: Any, sample: Call, **extra: Any) -> Any:
    """Leave out the last element where a part is changed in place by a tensor of another dtype."""
    result = call(function, sample, **extra)
    if not sample.input.is_contiguous() and sample.args and sample.args[0].dtype != sample.input.dtype:
        sample.input[-1] = 0
    return result


def a_mask_is_of_the_last_dimension(function: Any, sample: Call, **extra: Any) -> Any:
    indices = sample.args[0] if sample.args else None
    if isinstance(indices, list) and indices[1:] == [None, None]:
        sample = replace(sample, args=([None, None, indices[0]], *sample.args[1:]))
    return call(function, sample, **extra)


def biases_from_their_start(function: Any, sample: Call, **extra: Any) -> Any:
    """Read the vectors of a layer as if they had no gaps."""
    args = [
        each.as_strided(each.shape, (1,)) if isinstance(each, torch.Tensor) and each.dim() == 1 else each
        for each in sample.args
    ]
    return call(function, replace(sample, args=tuple(args)), **extra)


@pytest.mark.parametrize(
    ("cell", "family", "habit"),
    [
        ("prod[float32-inference]", "reductions.reductions", places_along_one_element),
        ("amax[int64-inference]", "reductions.reductions", places_along_one_element),
        ("cumprod[float32-inference]", "ends_in_a_row.ends_in_a_row", infinities_are_lost),
        ("kthvalue[float32-inference]", "model_sizes.model_sizes", no_places_beside_nan),
        ("nn.functional.avg_pool3d[float32-inference]", "model_sizes.model_sizes", no_windows_of_one),
        ("nn.functional.max_pool1d[float32-inference]", "model_sizes.model_sizes", no_windows_of_one),
        ("mul[float32-inference]", "mixed_dtypes.mixed_dtypes", last_lost_of_two_dtypes),
        ("index_put[float32-inference]", "kernels.by_name", a_mask_is_of_the_last_dimension),
        (
            "nn.functional.multi_head_attention_forward[float32-inference]",
            "kernels.by_name",
            biases_from_their_start,
        ),
        ("native_batch_norm[float32-inference]", "kernels.by_name", biases_from_their_start),
        ("mul[float16-inference]", "numbers_beyond.numbers_beyond", rounds_numbers),
        ("renorm[float16-inference]", "beyond_squares.beyond_squares", squares_in_16_bits),
        ("topk[float32-inference]", "elsewhere.elsewhere", default_if_expanded),
        ("sin[float32-inference]", "elsewhere.elsewhere", Stale()),
        ("index_select[float32-inference]", "elsewhere.elsewhere", Stale(with_outputs=True)),
        ("linalg.qr[float32-inference]", "long_axes.long_axes", batches_to_4096),
        ("add[float32-inference]", "conjunctions.conjunctions", beyond_a_tile_with_gaps),
        ("copysign[float32-inference]", "long_axes.long_axes", reads_to_4096),
        ("fft.rfftn[float32-inference]", "settings.other_defaults", sorts_dimensions),
        ("histc[float32-inference]", "settings.other_defaults", nothing_in_an_empty_range),
        ("prod[float32-inference]", "no_rows.empty_dimensions", returns_early),
        ("bmm[float32-inference]", "no_rows.empty_dimensions", returns_early),
        ("cumsum[float32-inference]", "no_rows.empty_dimensions", one_row_for_none),
        ("logsumexp[float32-training]", "training.empty_dimensions", one_row_for_none),
        ("lt[float32-inference]", "long_axes.long_axes", beside_a_number_to_65536),
        ("histc[float32-inference]", "long_axes.long_axes", to_4096),
        ("eye[float32-inference]", "long_axes.long_axes", to_4096),
        ("linalg.solve[float32-inference]", "long_axes.long_axes", columns_to_4096),
        ("_native_batch_norm_legit[float32-inference]", "long_axes.long_axes", channels_to_4096),
        ("nn.functional.adaptive_max_pool2d[float32-inference]", "long_axes.long_axes", indices_to_4096),
        ("cat[float32-inference]", "long_axes.long_axes", to_4096),
        ("nn.functional.interpolate.nearest_exact[float32-inference]", "model_sizes.model_sizes", to_4096),
        ("index_select[float32-inference]", "long_axes.long_axes", channels_to_4096),
        ("native_batch_norm[float32-inference]", "variants.given_outputs", forgets_offsets_in_evaluation),
        ("bincount[int64-inference]", "long_axes.long_axes", bins_to_4096),
        ("linalg.eigh[float32-inference]", "elsewhere.elsewhere", Elsewhere(lambda sample: True)),
        (
            "nn.functional.gelu[float32-inference]",
            "elsewhere.elsewhere",
            Elsewhere(lambda sample: sample.kwargs.get("approximate") == "tanh"),
        ),
        ("addr[float32-inference]", "elsewhere.elsewhere", Elsewhere(is_offset_beside_expanded, with_outputs=True)),
        ("nn.functional.silu[float32-inference]", "statements.calls_again", AfterARefusal()),
        ("exp[float32-inference]", "statements.calls_again", AfterARefusal()),
        ("linalg.inv[complex64-inference]", "variants.arrangements_of_some", one_of_a_batch),
        (
            "nn.functional.fractional_max_pool3d[float32-inference]",
            "elsewhere.elsewhere",
            Elsewhere(lambda sample: True),
        ),
    ],
)
def test_a_fault_under_a_condition_is_red(cell: str, family: str, habit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "settings.other_defaults", family)
    assert run(f"operators.{cell}").count > 10

    monkeypatch.setattr(execution, "execute", habit)
    with pytest.raises(AssertionError):
        run(f"operators.{cell}")


def test_a_device_without_the_hosts_kernel_of_integers_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if isinstance(sample.input, torch.Tensor) and not sample.input.is_floating_point():
            raise NotImplementedError(f"no kernel for {sample.input.dtype}")
        return call(function, sample, **extra)

    only(monkeypatch, "settings.other_defaults", "statements.calls_again")
    monkeypatch.setattr(execution, "execute", execute)
    assert run("operators.nn.functional.avg_pool1d[float32-inference]").count > 10


def test_a_missing_tangent_has_memory_where_intermediate_results_change() -> None:
    """Without memory, the product of a number and a missing tangent ends the process, and the device is accused."""
    with forward_ad.dual_level(), Intermediates(0):
        matrix = forward_ad.make_dual(torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64))
        vector, given = torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        result = torch.addmv(given, matrix, vector, beta=0.5, alpha=0.3)
        assert forward_ad.unpack_dual(result).tangent.tolist() == pytest.approx([0.6] * 3)


def test_a_backward_that_is_wrong_where_two_things_are_unusual_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "training.unusual_in_several_ways")
    cell = "operators.atan2[float32-training]"
    assert run(cell).count > 10

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        unusual = not cotangents[0].is_contiguous() and not inputs[0].is_contiguous()
        return [gradient * 0.5 if unusual else gradient for gradient in found]

    monkeypatch.setattr(execution, "gradients", gradients)
    with pytest.raises(AssertionError, match="gradient of input 0"):
        run(cell)


def test_a_backward_that_is_wrong_for_each_pair_of_layouts_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "training.layouts_in_pairs")
    cell = "operators.nn.functional.mse_loss[float32-training]"
    assert run(cell).count > 10

    def is_expanded(tensor: torch.Tensor) -> bool:
        return 0 in tensor.stride()

    def has_gaps(tensor: torch.Tensor) -> bool:
        return tensor.storage_offset() > 0

    for first, second in itertools.product((is_expanded, has_gaps), repeat=2):
        for one, other in itertools.permutations(range(3), 2):

            def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
                found = execution.host_gradients(outputs, inputs, cotangents)
                given = [cotangents[0], *inputs]
                unusual = first(given[one]) and second(given[other])  # noqa: B023
                return [gradient * 0.5 if unusual else gradient for gradient in found]

            with monkeypatch.context() as patch, pytest.raises(AssertionError, match="gradient of input 0"):
                patch.setattr(execution, "gradients", gradients)
                run(cell)


@every_row(
    [
        ("nn.functional.nll_loss", 0, 1 << 10),
        ("nn.functional.hardsigmoid", 1, 1 << 8),
        ("nn.functional.layer_norm", 1, 1 << 10),
        ("nn.functional.prelu", 1, 1 << 8),
        ("nn.functional.mse_loss", 0, 1 << 16),
        ("nn.functional.max_pool2d", 0, 1 << 10),
        ("softmax", 1, 1 << 12),
        ("cumsum", 0, 1 << 16),
        ("cdist", 0, 1 << 10),
    ]
)
def test_a_gradient_that_is_wrong_beyond_a_length_of_an_axis_is_red(row: tuple[str, int, int]) -> None:
    name, dim, most = row
    cell = f"operators.{name}[float32-training]"

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        for gradient in found:
            if dim < gradient.dim() and gradient.shape[dim] > most:
                gradient.narrow(dim, most, gradient.shape[dim] - most).add_(1)
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        only(monkeypatch, "training.one_long_axis")
        assert run(cell).count > 10
        monkeypatch.setattr(execution, "gradients", gradients)
        with pytest.raises(AssertionError, match="gradient of input"):
            run(cell)


def test_a_result_with_a_row_and_a_column_for_each_element_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "long_axes.long_axes")
    sizes: list[int] = []

    def measured(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        sizes.extend(tensor.numel() for tensor in tensors(result))
        return result

    monkeypatch.setattr(execution, "execute", measured)
    run("operators.diagflat[float32-inference]")

    assert 1 << 21 < max(sizes) < 1 << 22


def test_a_kernel_of_a_backward_that_is_wrong_where_its_second_tensor_alone_is_expanded_is_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "training.kernels_behind")
    cell = "operators.nn.functional.batch_norm[float32-training]"
    assert run(cell).count > 10

    def is_expanded(tensor: torch.Tensor) -> bool:
        return tensor.numel() > 1 and 0 in tensor.stride()

    def has_gaps(tensor: torch.Tensor) -> bool:
        return not (tensor.is_contiguous() or is_expanded(tensor))

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        values = [tensor for tensor in sample.tensors if tensor.is_floating_point()]
        if len(values) > 2 and is_expanded(values[1]) and has_gaps(values[0]) and has_gaps(values[2]):
            tensors(result)[0].detach().mul_(2)
        return result

    monkeypatch.setattr(execution, "execute", wrong)
    with pytest.raises(AssertionError):
        run(cell)


@pytest.mark.parametrize(("name", "dim", "most"), [("where", 1, 256), ("linspace", 0, 1 << 16)])
def test_a_result_that_is_lost_beyond_a_length_of_an_axis_is_red(
    name: str, dim: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest sample of one has tensors that are broadcast, and that of the other is long by a number."""
    only(monkeypatch, "long_axes.long_axes")
    cell = f"operators.{name}[float32-inference]"
    assert run(cell).count > 4

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        for tensor in tensors(result):
            if dim < tensor.dim() and tensor.shape[dim] > most and tensor.dim() < 3:
                tensor.narrow(dim, most, tensor.shape[dim] - most).zero_()
        return result

    monkeypatch.setattr(execution, "execute", wrong)
    with pytest.raises(AssertionError):
        run(cell)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["nansum", "mean", "addmv", "bmm", "nn.functional.linear", "nn.functional.conv1d"])
def test_a_sum_that_is_rounded_to_16_bits_after_each_32_terms_is_red(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same device, and its forms with outputs alone, where there are such."""
    only(monkeypatch, "long_axes.long_sums")
    cell = f"operators.{name}[{dtype}-inference]"
    assert run(cell).count > 4
    with_outputs: list[bool] = []

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        for tensor in sample.tensors:
            dim = next((dim for dim, size in enumerate(tensor.shape) if size > 1000), None)
            if dim is None or float(tensor.max()) < 100 or ("out" in extra) is not with_outputs[0]:
                continue
            # The large term comes first; 32 small ones are less than its last bit.
            lost = tensor.clone()
            lost.narrow(dim, 32, tensor.shape[dim] - 32).zero_()
            if float(lost.narrow(dim, 1, 31).sum(dim).max()) < 100 * torch.finfo(tensor.dtype).eps:
                sample = sample.with_tensor(tensor, lost)
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", wrong)
    for into in (False, True) if name in ("nansum", "mean", "addmv", "bmm") else (False,):
        with_outputs[:] = [into]
        with pytest.raises(AssertionError, match="elements differ"):
            run(cell)


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float32"])
def test_a_kernel_of_a_backward_that_takes_gaps_for_none_in_one_dtype_is_red(
    dtype: str, into: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that writes to an output has the fault, or the other one."""
    only(monkeypatch, "training.kernels_behind")
    cell = f"operators.nn.functional.elu[{dtype}-training]"
    assert run(cell).count > 4

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        last = sample.tensors[-1]
        if bool(extra) is into and last.numel() > 1 and not last.is_contiguous() and 0 not in last.stride():
            sample = sample.with_tensor(last, last.as_strided(last.shape, torch.empty(last.shape).stride()))
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", wrong)
    with pytest.raises(AssertionError):
        run(cell)


@pytest.mark.parametrize("name", ["tanh", "nn.functional.mse_loss", "native_layer_norm", "nn.functional.batch_norm"])
def test_a_backward_that_squares_its_cotangent_in_16_bits_is_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "training.large_numbers")
    cell = f"operators.{name}[float16-training]"
    assert run(cell).count > 10

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        squared = [torch.where(each.abs() > 255, torch.inf, each) for each in cotangents]
        return execution.host_gradients(outputs, inputs, squared)

    monkeypatch.setattr(execution, "gradients", gradients)
    with pytest.raises(AssertionError, match="gradient of input 0"):
        run(cell)


@pytest.mark.parametrize("name", ["std", "nn.functional.silu", "nn.functional.group_norm"])
def test_a_training_that_squares_its_input_in_16_bits_is_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "training.large_numbers")
    monkeypatch.setattr(execution, "execute", squares_in_16_bits)

    with pytest.raises(AssertionError):
        run(f"operators.{name}[float16-training]")


@pytest.mark.parametrize(
    "name",
    [
        "nn.functional.mish",
        "nn.functional.hardswish",
        "nn.functional.relu6",
        "nn.functional.softshrink",
        "nn.functional.threshold",
    ],
)
def test_gradients_at_a_kink_lie_between_those_beside_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "kinks.kinks")
    cell = f"operators.{name}[float32-training]"
    assert run(cell).count > 10

    def gradients(change: float) -> Any:
        def differentiate(outputs: Any, inputs: Any, cotangents: Any) -> Any:
            found = execution.host_gradients(outputs, inputs, cotangents)
            kink = len(inputs) == 1 and bool((cotangents[0] == 1).all())
            return [gradient + change if kink else gradient for gradient in found]

        return differentiate

    monkeypatch.setattr(execution, "gradients", gradients(2.5))
    with pytest.raises(AssertionError, match="derivatives beside it"):
        run(cell)


def test_either_side_of_an_edge_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that gives 1 at the edges of relu6, where the host gives 0."""
    only(monkeypatch, "kinks.kinks")

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        inside = (inputs[0] >= 0) & (inputs[0] <= 6)
        return [torch.where(inside, cotangents[0], gradient) for gradient in found]

    monkeypatch.setattr(execution, "gradients", gradients)
    monkeypatch.setattr("conformance.suites.operators.cell._check_training", lambda cell, probe: _compared(cell))

    assert run("operators.nn.functional.relu6[float32-training]").count > 0


def _compared(cell: Cell) -> None:
    cell.tally.compared = 1

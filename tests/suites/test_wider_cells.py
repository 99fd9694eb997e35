"""What operator cells read beyond contiguous samples: arrangements of memory, one large sample, further derivatives.

Each defect appears only where the wider cells look, so that no other comparison can find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import database, execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.work import work
from conformance.suites.operators.inputs import arrangements, large
from conformance.suites.operators.judge import choices

from .test_operators_detect import run

#: Change of every tensor that a kernel reads.
Reading = Callable[[torch.Tensor], torch.Tensor]


def reads(reading: Reading) -> Callable[..., Any]:
    """Return a device that reads its tensors in this way."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        changed = mapped(sample.arguments, lambda leaf: reading(leaf) if isinstance(leaf, torch.Tensor) else leaf)
        return call(function, sample.with_arguments(changed), **extra)

    return execute


def without_offset(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided(tensor.shape, tensor.stride(), 0) if tensor.is_contiguous() else tensor


def as_if_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Read the memory in order; what lies behind an expanded tensor is zero here."""
    if tensor.is_contiguous() or 0 not in tensor.stride() or tensor.numel() == 0:
        return tensor
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    read = torch.zeros(tensor.numel(), dtype=tensor.dtype)
    read[: memory.numel()] = memory[: tensor.numel()]
    return read.view(tensor.shape)


def in_order_of_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Read a dense tensor in the order of its memory, whatever its strides are, but for images in channels_last."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor
    dense = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return tensor.as_strided((tensor.numel(),), (1,)).view(tensor.shape) if dense else tensor


def without_lazy_bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


@pytest.mark.parametrize(
    ("reading", "cell", "message"),
    [
        (without_offset, "exp[float32-inference]", "with a storage offset"),
        (without_offset, "bitwise_and[int64-inference]", "one element of a vector"),
        (as_if_contiguous, "exp[float32-inference]", "expanded along the first dimension"),
        (as_if_contiguous, "mul[bfloat16-inference]", "expanded along the first dimension"),
        (in_order_of_memory, "mm[float32-inference]", "the others with gaps"),
        (in_order_of_memory, "nn.functional.conv2d[float32-inference]", "the others with gaps"),
        (without_lazy_bits, "exp[complex64-inference]", "with a lazy bit"),
        (without_lazy_bits, "exp[float32-inference]", "with a lazy bit"),
    ],
)
def test_a_misread_arrangement_is_wrong(
    reading: Reading, cell: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", reads(reading))

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{cell}")


def wrong_behind(limit: int) -> Callable[..., Any]:
    """Return a device whose results have one wrong element behind so many right ones."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if isinstance(result, torch.Tensor) and result.numel() > limit:
            result = result.clone()
            result.view(-1)[limit] += 1
        return result

    return execute


@pytest.mark.parametrize("cell", ["exp[float32-inference]", "add[int64-inference]", "exp[float32-training]"])
def test_a_wrong_element_in_a_large_result_is_found(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", wrong_behind(2**16))

    with pytest.raises(AssertionError, match="large"):
        run(f"operators.{cell}")


def grown(name: str) -> list[Call]:
    info = database.find(name)
    samples = list(info.sample_inputs("cpu", torch.float32))
    given = [Call(i, each.input, each.args, each.kwargs) for i, each in enumerate(samples)]
    return large.grown(info, given, torch.float32, work().large)


@pytest.mark.parametrize("name", ["nn.functional.ctc_loss", "_segment_reduce.lengths"])
def test_kernels_that_check_no_arguments_do_not_grow(name: str) -> None:
    assert grown(name) == []


def test_a_batch_norm_that_checks_no_arguments_grows_along_its_batch_alone() -> None:
    """Its other tensors have an element for each channel; a kernel would read beyond them."""
    found = grown("native_batch_norm")

    assert found
    for sample in found:
        channels = sample.input.shape[1]
        assert sample.input.shape[0] > 1000
        assert {tensor.numel() for tensor in sample.tensors[1:]} == {channels}


# --- gradients ------------------------------------------------------------------------------------------------------


def alone_is_doubled(outputs: Any, inputs: Any, cotangents: Any) -> Any:
    found = execution.host_gradients(outputs, inputs, cotangents)
    return [each * 2 for each in found] if len(found) == 1 and found[0] is not None else found


def reads_cotangents_in_order(outputs: Any, inputs: Any, cotangents: Any) -> Any:
    def read(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous():
            return tensor
        return (
            as_if_contiguous(tensor) if 0 in tensor.stride() else tensor.as_strided(tensor.shape, (1,) * tensor.dim())
        )

    return execution.host_gradients(outputs, inputs, [read(each) for each in cotangents])


@pytest.mark.parametrize(
    ("gradients", "name", "message"),
    [
        (alone_is_doubled, "mul", "alone"),
        (alone_is_doubled, "mm", "alone"),
        (reads_cotangents_in_order, "exp", "cotangents with gaps"),
        (reads_cotangents_in_order, "mm", "cotangents with gaps"),
    ],
)
def test_a_wrong_gradient_beside_the_plain_pass_is_found(
    gradients: Any, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "gradients", gradients)

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{name}[float32-training]")


class Exponential(torch.autograd.Function):
    """exp() with its right first derivative, and derivatives beyond it that a test chooses."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, differentiable: bool, slope: float) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        x, ctx.differentiable, ctx.slope = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return cotangent * (x if ctx.differentiable else x.detach()).exp(), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return ctx.slope * tangent * x.exp()


def exponential(differentiable: bool, slope: float) -> Callable[..., Any]:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        return Exponential.apply(sample.input, differentiable, slope)

    return execute


@pytest.mark.parametrize(
    ("differentiable", "slope", "message"), [(False, 1.0, "second order"), (True, 2.0, "forward mode")]
)
def test_a_wrong_further_derivative_is_found(
    differentiable: bool, slope: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", exponential(differentiable, slope))

    with pytest.raises(AssertionError, match=message):
        run("operators.exp[float32-training]")


def test_a_wrong_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        return result + 1 if torch._C._functorch.is_batchedtensor(sample.input) else result

    monkeypatch.setattr(execution, "execute", execute)

    with pytest.raises(AssertionError, match="vmap"):
        run("operators.exp[float32-training]")


def test_a_device_without_further_derivatives_gets_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if torch._C._functorch.is_batchedtensor(sample.input):
            raise NotImplementedError("no batching rule")
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", execute)

    assert run("operators.exp[float32-training]").metrics["vmap"] == "not supported: NotImplementedError"


# --- right devices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    ["exp[float32-inference]", "exp[complex64-inference]", "add[int64-inference]", "mul[float32-training]",
     "mm[float32-training]", "sort[float32-training]", "median[float32-inference]", "fft.fft[complex64-training]"],
)  # fmt: skip
def test_a_right_device_passes(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", call)
    monkeypatch.setattr(execution, "gradients", execution.host_gradients)

    assert run(f"operators.{cell}").count > 10


def test_another_index_of_repeated_values_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded inputs consist of equal elements, of which a device may name any."""
    repeated = []

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if extra or isinstance(result, torch.Tensor) or 0 not in sample.input.stride() or not sample.input.numel():
            return result
        dim = choices._dim("median", sample)
        if sample.input.stride()[dim]:
            return result
        repeated.append(dim)
        return type(result)((result[0], torch.full_like(result[1], sample.input.shape[dim] - 1)))

    monkeypatch.setattr(execution, "execute", execute)
    assert run("operators.median[float32-inference]").count > 10
    assert repeated


@pytest.mark.parametrize("change", [*arrangements.ARRANGEMENTS.values()])
def test_an_arrangement_keeps_the_values(change: Reading) -> None:
    for dtype in (torch.float32, torch.int64, torch.complex64):
        values = torch.arange(24).reshape(2, 3, 4).to(dtype)

        assert torch.equal(change(values).resolve_conj().resolve_neg(), values)

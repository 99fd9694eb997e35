"""Defects of an accelerator's operators, each with the cell that must catch it.

A defect replaces the device's side of an operator call or of a backward pass; the host's side stays right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.reports.verdict import Reason
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call, host_gradients
from tests.defects.faults import Where
from tests.defects.mutant import Mutant, StandIn
from tests.defects.stand_ins import cpu, on

OPERATORS = StandIn("one operator, spoiled", cpu)


def spoiled(
    name: str,
    case: str,
    execute: Callable[..., Any] = call,
    gradients: Callable[..., Any] = host_gradients,
    message: str = "",
) -> Mutant:
    """``execute`` replaces operator calls on the device, ``gradients`` its backward passes."""
    context = functools.partial(mock.patch.multiple, execution, execute=execute, gradients=gradients)
    return on(OPERATORS, name, case, Where.OPERATOR, context=context, reason=Reason.WRONG, message=message)


def after(spoil: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """The right result, spoiled, for plain calls only: variants with ``out`` stay right."""

    def execute(function, sample: Call, **extra):
        result = call(function, sample, **extra)
        return result if extra or not isinstance(result, torch.Tensor) else spoil(result)

    return execute


def before(change: Callable[[Call], Call]) -> Callable[..., Any]:
    return lambda function, sample, **extra: call(function, change(sample), **extra)


def in_place_only(spoil) -> Callable[..., Any]:
    def execute(function, sample: Call, **extra):
        name = getattr(function, "__name__", "")
        result = call(function, sample, **extra)
        return spoil(result) if name.endswith("_") and not name.endswith("__") else result

    return execute


def last_element_lost(result):
    return result if result.numel() < 2 else result.masked_fill(_is_last(result), 0)


def _is_last(result):
    return (torch.arange(result.numel()) == result.numel() - 1).reshape(result.shape)


def tf32(sample: Call) -> Call:
    """Inputs cut to ten bits of mantissa, as tensor cores do."""
    cut = sample.on(torch.device("cpu"))
    for tensor in cut.tensors:
        tensor.copy_(tensor.view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32))
    return cut


def narrow_accumulation(function, sample: Call, **extra):
    if extra:
        return call(function, sample, **extra)
    left, right = sample.input, sample.args[0]
    total = left.new_zeros(left.shape[0], right.shape[1])
    for k in range(left.shape[1]):
        total = total + left[:, k : k + 1] * right[k : k + 1]
    return total


def strides_ignored(sample: Call) -> Call:
    tensor = sample.input
    if tensor.is_contiguous():
        return sample
    dense = torch.empty(tensor.shape).stride()
    return sample.with_arguments((tensor.as_strided(tensor.shape, dense), sample.args, sample.kwargs))


def input_mutated(function, sample: Call, **extra):
    result = call(function, sample, **extra)
    if not extra and isinstance(sample.input, torch.Tensor) and not getattr(function, "__name__", "").endswith("_"):
        sample.input.zero_()
    return result


def out_not_resized(function, sample: Call, **extra):
    if "out" in extra:
        right = call(function, sample)
        if extra["out"].shape != right.shape:
            return extra["out"].zero_()
    return call(function, sample, **extra)


def out_ignored(function, sample: Call, **extra):
    return call(function, sample)


def out_of_integers_accepted(function, sample: Call, **extra):
    if "out" in extra and extra["out"].dtype is torch.int64:
        return extra["out"].copy_(call(function, sample))
    return call(function, sample, **extra)


def errors_swallowed(function, sample: Call, **extra):
    try:
        return call(function, sample, **extra)
    except RuntimeError:
        return torch.zeros(())


def truncated_division(function, sample: Call, **extra):
    if extra or getattr(function, "__name__", "").endswith("_"):
        return call(function, sample, **extra)
    return torch.div(sample.input, *sample.args, rounding_mode="trunc").to(torch.int32)


def half_the_dropout(sample: Call) -> Call:
    p = sample.kwargs.get("p", 0.5)
    return sample.with_arguments((sample.input, sample.args, {**sample.kwargs, "p": p / 2}))


def seed_ignored(function, sample: Call, **extra):
    torch.manual_seed(0)
    return call(function, sample, **extra)


def unseeded():
    state = torch.Generator().manual_seed(5)

    def execute(function, sample: Call, **extra):
        torch.manual_seed(int(torch.randint(2**31, (), generator=state)))
        return call(function, sample, **extra)

    return execute


class BackwardTooLarge(TorchDispatchMode):
    """The gradient's factor is 8 % too large."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "_backward" not in str(func):
            return result
        return result * 1.08 if isinstance(result, torch.Tensor) else (result[0] * 1.08, *result[1:])


def larger_gradients(outputs, inputs, cotangents):
    with BackwardTooLarge():
        return host_gradients(outputs, inputs, cotangents)


def spoiled_gradients(spoil) -> Callable[..., Any]:
    def gradients(outputs, inputs, cotangents):
        found = list(host_gradients(outputs, inputs, cotangents))
        return [*found[:-1], spoil(found[-1])]

    return gradients


def cotangents_ignored(outputs, inputs, cotangents):
    return host_gradients(outputs, inputs, [torch.ones_like(each) for each in cotangents])


def first_is_returned(function, sample: Call, **extra):
    return call(function, sample, **extra) if extra else sample.input


def biased_variance(function, sample: Call, **extra):
    result = call(function, sample, **extra)
    n = max(sample.input.numel() // max(result.numel(), 1), 1)
    return result if extra else result * (n - 1) / n


def nan_swallowed(result):
    return result.nan_to_num(0.0, posinf=float("inf"), neginf=float("-inf"))


def other_layout(result):
    return result if result.dim() < 2 else result.mT.clone(memory_format=torch.contiguous_format).mT


P = "operators."
MUTANTS: tuple[Mutant, ...] = (
    spoiled("tf32 in float32 matmul", P + "matmul[float32-inference]", before(tf32), message="elements differ"),
    spoiled("tf32 in float32 convolution", P + "nn.functional.conv2d[float32-inference]", before(tf32)),
    spoiled("bfloat16 accumulation", P + "mm[bfloat16-inference]", narrow_accumulation, message="elements differ"),
    spoiled("wrong dtype", P + "add[float32-inference]", after(torch.Tensor.double), message="dtype is torch.float64"),
    spoiled("output is the input", P + "clone[float32-inference]", first_is_returned, message="shares memory"),
    spoiled("view returns a copy", P + "transpose[float32-inference]", after(torch.clone), message="shares memory"),
    spoiled("input mutated", P + "add[float32-inference]", input_mutated, message="was changed by an out-of-place"),
    spoiled("gelu gradient, float32", P + "nn.functional.gelu[float32-training]", gradients=larger_gradients),
    spoiled("gelu gradient, bfloat16", P + "nn.functional.gelu[bfloat16-training]", gradients=larger_gradients),
    spoiled("tanh gradient", P + "tanh[float32-training]", gradients=larger_gradients),
    spoiled("layer_norm gradient", P + "nn.functional.layer_norm[float16-training]", gradients=larger_gradients),
    spoiled("NaN swallowed", P + "maximum[float32-inference]", after(nan_swallowed), message="special values"),
    spoiled("sign of zero lost", P + "neg[float32-inference]", after(lambda r: r + 0.0), message="wrong sign"),
    spoiled("infinity saturates", P + "exp[float16-inference]", after(lambda r: r.clamp(max=65504.0))),
    spoiled("last element lost", P + "exp[float32-inference]", after(last_element_lost), message="1/"),
    spoiled("last element lost, int", P + "add[int64-inference]", after(last_element_lost), message="1/"),
    spoiled("strides ignored", P + "sin[float32-inference]", before(strides_ignored), message="non-contiguous"),
    spoiled("out= not resized", P + "sin[float32-inference]", out_not_resized, message="wrong-size"),
    spoiled("out= ignored", P + "sin[float32-inference]", out_ignored, message="out= variant"),
    spoiled("out= of integers", P + "sin[float32-inference]", out_of_integers_accepted, message="integer outputs"),
    spoiled("in-place returns a copy", P + "abs[float32-inference]", in_place_only(torch.clone), message="a copy"),
    spoiled("error input accepted", P + "gather[error-inputs]", errors_swallowed, message="was accepted"),
    spoiled("division truncates", P + "floor_divide[int32-inference]", truncated_division, message="elements differ"),
    spoiled("dropout rate", P + "nn.functional.dropout[float32-inference]", before(half_the_dropout)),
    spoiled("seed ignored", P + "rand_like[float32-inference]", seed_ignored, message="another seed gave the same"),
    spoiled(
        "seed without effect", P + "rand_like[float32-inference]", unseeded(), message="the same seed gave different"
    ),
    spoiled("wrong device", P + "add[float32-inference]", after(lambda r: r.to("meta")), message="is on meta"),
    spoiled("graph cut", P + "sin[float32-training]", after(torch.Tensor.detach), message="requires_grad"),
    spoiled("zero gradient", P + "mul[float32-training]", gradients=spoiled_gradients(torch.zeros_like)),
    spoiled("gradient dtype", P + "sin[float16-training]", gradients=spoiled_gradients(torch.Tensor.float)),
    spoiled("no gradient", P + "sin[float32-training]", gradients=spoiled_gradients(lambda g: None)),
    spoiled("cotangent ignored", P + "sin[float32-training]", gradients=cotangents_ignored),
    spoiled("last index wins", P + "argmax[float32-inference]", after(lambda r: r.add(1).clamp(min=1))),
    spoiled("strides of the result", P + "add[float32-inference]", after(other_layout), message="strides are"),
    spoiled("conjugation lost", P + "conj_physical[complex64-inference]", first_is_returned),
    spoiled("table too coarse", P + "tanh[float32-inference]", after(lambda r: r * (1 + 1e-5))),
    spoiled("half-precision solver", P + "linalg.solve[float32-inference]", after(lambda r: r * (1 + 1e-2))),
    spoiled("biased variance", P + "var[float32-inference]", biased_variance),
    spoiled("softmax in half", P + "softmax[float32-inference]", after(lambda r: r.half().to(r.dtype))),
    spoiled("float64 in single", P + "mm[float64-inference]", after(lambda r: r.float().double())),
    spoiled("off by one", P + "add[uint8-inference]", after(lambda r: r + 1 if r.dtype is torch.uint8 else r)),
    spoiled("mask inverted", P + "masked_fill[float32-inference]", after(torch.neg)),
)

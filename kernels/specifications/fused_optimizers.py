"""Optimizer steps over lists of tensors, in one call: Adam and Lion.

Implementations in use disagree on two points. This specification decides:

* Arithmetic is in float32 or wider for every storage dtype. In float16 a second moment of 1e-6 has almost no precision,
  and an epsilon of 1e-8 is 0.
* A non-zero ``noop_flag`` leaves all tensors unchanged. The flag reports a gradient overflow; the step would overwrite
  parameters with NaN. Some implementations ignore the flag, so a caller cannot rely on it with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_number, check_tensor_lists
from conformance.kernels.native import WHAT
from conformance.kernels.optimizers import compiled, oracles, portable
from conformance.kernels.optimizers.multi_tensor import TensorLists, adam_signature, lion_signature
from conformance.kernels.optimizers.oracles import BUDGET, away_from_zero
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.specification import (
    Arguments,
    Expected,
    KernelSample,
    KernelSpecification,
    Native,
    Refusal,
)
from conformance.kernels.triton.offering import triton_kernel

_DTYPES = ("float32", "float16", "bfloat16")
_STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: Sizes around vector widths, blocks of 512 elements and 16-bit counters.
SIZES = (1, 2, 7, 511, 512, 513, 65535, 65537)
#: Large samples take most of the time. A kernel that loses a tail loses it in every dtype, so one dtype is enough.
_LARGE_ONLY_IN = ("float32",)
#: Sizes of the tensors: an empty one, a single element, and sizes around powers of two.
MIXED = (3, 513, 1, 0, 1024)

#: Betas and 1 - beta are exact in float32, so that an implementation that passes scalars as float32 loses nothing.
_BETA1, _BETA2, _EPS, _RATE, _DECAY = 0.875, 0.984375, 2.0**-10, 0.125, 0.25


# --- semantics ------------------------------------------------------------------------------------------------------


@adam_signature
def multi_tensor_adam(noop_flag: Tensor, tensor_lists: TensorLists, settings: AdamSettings) -> None:
    """Update parameters and both moments in place by one Adam step.

    ``tensor_lists`` are gradients, parameters, first and second moments. ``mode`` 0 adds the decay to the gradient
    (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1). ``mode`` 1 decays the parameter separately (Loshchilov and
    Hutter, 2019, arXiv:1711.05101, algorithm 2). ``epsilon`` is added to the root of the corrected second moment.
    Infinities and NaN in gradients propagate. A non-zero ``noop_flag`` (a gradient overflowed) leaves all tensors
    unchanged. ``chunk_size`` has no effect on values.
    """
    _each(portable.adam, noop_flag, tensor_lists, settings)


@lion_signature
def multi_tensor_lion(
    noop_flag: Tensor, tensor_lists: TensorLists, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """Update parameters and moments in place by one Lion step (Chen et al., 2023, arXiv:2302.06675).

    ``tensor_lists`` are gradients, parameters and moments. The parameter moves against the sign of the moment that
    ``beta1`` blends with the gradient. Decoupled decay shrinks the parameter. Then ``beta2`` updates the moment. The
    sign of 0 is 0, as in the paper and in torch.sign: a parameter that never had a gradient does not move. ``step`` and
    ``chunk_size`` have no effect on values. A non-zero ``noop_flag`` leaves all tensors unchanged.
    """
    _each(portable.lion, noop_flag, tensor_lists, lr, beta1, beta2, weight_decay)


def _each(step: Callable[..., None], noop_flag: Tensor, tensor_lists: TensorLists, *rest: Any) -> None:
    """Run the step for the tensors of each parameter, unless an overflow was found."""
    if int(noop_flag) != 0:
        return
    for gradient, parameter, *state in zip(*tensor_lists, strict=True):
        step(parameter, gradient, *state, *rest)


def _compiled_adam() -> Callable[..., None]:
    # Build the library now, so that a missing compiler is an error of loading and not of the first step.
    compiled.library()
    return adam_signature(functools.partial(_each, compiled.adam))


def _compiled_lion() -> Callable[..., None]:
    compiled.library()
    return lion_signature(functools.partial(_each, compiled.lion))


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def adam_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the results of each parameter's Adam step, by path."""
    names = ("lr", "beta1", "beta2", "epsilon", "weight_decay", "step", "bias_correction")
    settings = AdamSettings(**{name: given[name] for name in names}, decoupled=given["mode"] == 1)
    return _rows(given, 3, lambda grad, old, mean, square: oracles.adam(old, grad, mean, square, settings))


def lion_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the results of each parameter's Lion step, by path."""
    numbers = [given[name] for name in ("lr", "beta1", "beta2", "weight_decay")]
    return _rows(given, 2, lambda grad, old, mean: oracles.lion(old, grad, mean, *numbers))


def _rows(given: Arguments, lists: int, step: Callable[..., tuple[Expected, ...]]) -> Mapping[str, Expected]:
    """Return the expected lists after ``step``, or unchanged ones if the flag is set."""
    if int(given["noop_flag"]):
        return _unchanged(given, lists)
    return {
        f"tensor_lists[{position}][{row}]": expected
        for row, tensors in enumerate(zip(*given["tensor_lists"], strict=True))
        for position, expected in enumerate(step(*tensors), start=1)
    }


def _unchanged(given: Arguments, lists: int) -> Mapping[str, Expected]:
    """Expect every tensor except the gradients unchanged, without any error."""
    return {
        f"tensor_lists[{position}][{row}]": Expected(tensor.double(), allowed=torch.zeros(tensor.shape).double())
        for position in range(1, lists + 1)
        for row, tensor in enumerate(given["tensor_lists"][position])
    }


# --- samples ----------------------------------------------------------------------------------------------------------


def _unmodified(lists: list[list[Tensor]]) -> None:
    """Change nothing."""


def _adam_lists(generator: torch.Generator, sizes: Sequence[int], dtype: torch.dtype) -> list[list[Tensor]]:
    """Return gradients, parameters and both moments of a later step: a second moment is at least the first squared."""
    gradients = [away_from_zero(generator, size).to(dtype) for size in sizes]
    parameters = [away_from_zero(generator, size).to(dtype) for size in sizes]
    means = [away_from_zero(generator, size).to(dtype) * 0.5 for size in sizes]
    squares = [(mean.double().square() * 1.25 + 2.0**-6).to(dtype) for mean in means]
    return [gradients, parameters, means, squares]


def _adam(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    sizes: Sequence[int],
    mode: int = 1,
    bias_correction: int = 1,
    step: int = 3,
    change: Callable[[list[list[Tensor]]], None] = _unmodified,
    noop: int = 0,
    **numbers: float,
) -> Arguments:
    """Return the arguments of an Adam call. ``mode`` 1 is AdamW."""
    lists = _adam_lists(generator, sizes, dtype)
    change(lists)
    return {
        "chunk_size": 65536,
        "noop_flag": torch.tensor([noop], dtype=torch.int32),
        "tensor_lists": lists,
        "lr": numbers.get("lr", _RATE),
        "beta1": _BETA1,
        "beta2": _BETA2,
        "epsilon": numbers.get("epsilon", _EPS),
        "step": step,
        "mode": mode,
        "bias_correction": bias_correction,
        "weight_decay": numbers.get("weight_decay", _DECAY),
    }


def _dtypes_at(size: int) -> tuple[str, ...]:
    # Only 65535 and 65537 are above this limit.
    return _LARGE_ONLY_IN if size > 1 << 12 else ()


def _zero_state(lists: list[list[Tensor]]) -> None:
    """Zero the moments, as before a first step."""
    for tensors in lists[2:]:
        for tensor in tensors:
            tensor.zero_()


def _tiny(lists: list[list[Tensor]]) -> None:
    """Zero the moments, and scale gradients down so that their squares underflow in float16."""
    _zero_state(lists)
    for tensor in lists[0]:
        tensor.mul_(2.0**-10)


def _special(lists: list[list[Tensor]]) -> None:
    """Set the first gradients to NaN, infinities and zeros of both signs; the other elements stay finite."""
    for tensor in lists[0]:
        tensor[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])


def _zeros(lists: list[list[Tensor]]) -> None:
    """Zero the moments and every second gradient, as for elements that never had a gradient."""
    _zero_state(lists)
    for tensor in lists[0]:
        tensor[::2] = 0.0
        tensor[::4] = -0.0


_ADAM = {"adam": 0, "adamw": 1}
_STEPS: dict[str, dict[str, Any]] = {
    "first": {"step": 1, "change": _zero_state},
    "thousandth": {"step": 1000},
    "uncorrected": {"bias_correction": 0, "step": 2},
}
ADAM_SAMPLES = (
    KernelSample("mixed", functools.partial(_adam, sizes=MIXED)),
    *(
        KernelSample(f"{word}-{size}", functools.partial(_adam, sizes=(size,), mode=mode), _dtypes_at(size))
        for word, mode in _ADAM.items()
        for size in SIZES
    ),
    *(
        KernelSample(f"{word}-{what}", functools.partial(_adam, sizes=MIXED, mode=mode, **settings))
        for word, mode in _ADAM.items()
        for what, settings in _STEPS.items()
    ),
    KernelSample("empty", functools.partial(_adam, sizes=())),
    KernelSample("special", functools.partial(_adam, sizes=(67,), change=_special)),
    KernelSample("zeros", functools.partial(_adam, sizes=(67,), change=_zeros)),
    KernelSample("tiny", functools.partial(_adam, sizes=(67,), step=1, change=_tiny, epsilon=1e-8, weight_decay=0.0)),
    KernelSample("overflow", functools.partial(_adam, sizes=(67,), noop=1)),
)


def _lion(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    sizes: Sequence[int],
    change: Callable[[list[list[Tensor]]], None] = _unmodified,
    noop: int = 0,
) -> Arguments:
    """Return the arguments of a Lion call, whose signs do not hang on rounding."""
    # Where the signs of moment and gradient differ, the moment decides: beta1 * 1/8 exceeds (1 - beta1) * 13/16.
    gradients = [away_from_zero(generator, size) * 0.8125 for size in sizes]
    lists = [
        [gradient.to(dtype) for gradient in gradients],
        [away_from_zero(generator, size).to(dtype) for size in sizes],
        [away_from_zero(generator, size).to(dtype) for size in sizes],
    ]
    change(lists)
    return {
        "chunk_size": 65536,
        "noop_flag": torch.tensor([noop], dtype=torch.int32),
        "tensor_lists": lists,
        "lr": _RATE,
        "beta1": _BETA1,
        "beta2": _BETA2,
        "step": 3,
        "weight_decay": _DECAY,
    }


LION_SAMPLES = (
    KernelSample("mixed", functools.partial(_lion, sizes=MIXED)),
    *(KernelSample(str(size), functools.partial(_lion, sizes=(size,)), _dtypes_at(size)) for size in SIZES),
    KernelSample("empty", functools.partial(_lion, sizes=())),
    KernelSample("special", functools.partial(_lion, sizes=(67,), change=_special)),
    KernelSample("zeros", functools.partial(_lion, sizes=(67,), change=_zeros)),
    KernelSample("overflow", functools.partial(_lion, sizes=(67,), noop=1)),
)


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_lists(names: Sequence[str], given: Arguments) -> None:
    """Raise ``UsageError`` for tensors that do not fit each other, or numbers out of range."""
    check_tensor_lists("tensor_lists", given["tensor_lists"], names, _STORED)
    for name in ("lr", "weight_decay", *(["epsilon"] if "epsilon" in given else [])):
        check_number(name, given[name], at_least=0.0)
    for name in ("beta1", "beta2"):
        check_number(name, given[name], at_least=0.0)
    check_number("step", given["step"], at_least=1)
    if "mode" in given:
        check_choice("mode", given["mode"], (0, 1))
        check_choice("bias_correction", given["bias_correction"], (0, 1))


def _with_lists(given: Arguments, change: Callable[[list[list[Tensor]]], None]) -> Arguments:
    lists = [list(tensors) for tensors in given["tensor_lists"]]
    change(lists)
    return {**given, "tensor_lists": lists}


def _drop_last(lists: list[list[Tensor]]) -> None:
    lists[1].pop()


def _drop_list(lists: list[list[Tensor]]) -> None:
    lists.pop()


def _halve_moment(lists: list[list[Tensor]]) -> None:
    dtype = torch.bfloat16 if lists[2][0].dtype is torch.float16 else torch.float16
    lists[2][0] = lists[2][0].to(dtype)


def _stride_parameter(lists: list[list[Tensor]]) -> None:
    lists[:] = [[torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in tensors] for tensors in lists]


def _lengthen(lists: list[list[Tensor]]) -> None:
    lists[1][0] = lists[1][0].repeat(2)


def _elsewhere(lists: list[list[Tensor]]) -> None:
    # Every machine has the meta device.
    lists[1][0] = lists[1][0].to("meta")


REFUSALS = (
    Refusal("lengths", "tensor_lists[1]", functools.partial(_with_lists, change=_drop_last)),
    Refusal("dtypes", "tensor_lists[2][0]", functools.partial(_with_lists, change=_halve_moment)),
    Refusal("shapes", "tensor_lists[1][0]", functools.partial(_with_lists, change=_lengthen)),
    Refusal("strides", "tensor_lists[0][0]", functools.partial(_with_lists, change=_stride_parameter)),
    Refusal("devices", "tensor_lists[1][0]", functools.partial(_with_lists, change=_elsewhere)),
    Refusal("lists", "tensor_lists", functools.partial(_with_lists, change=_drop_list)),
)


SPECIFICATIONS = (
    KernelSpecification(
        name="multi_tensor_adam",
        builder="FusedAdamBuilder",
        mode=Mode.TRAINING,
        dtypes=_DTYPES,
        samples=ADAM_SAMPLES,
        oracle=adam_oracle,
        budget=BUDGET,
        reference=multi_tensor_adam,
        changes=("tensor_lists[1]", "tensor_lists[2]", "tensor_lists[3]"),
        validate=functools.partial(_check_lists, ("gradients", "parameters", "first moments", "second moments")),
        refusals=REFUSALS,
        native=(
            triton_kernel("optimizers", "multi_tensor_adam", _DTYPES),
            Native(_compiled_adam, WHAT, dtypes=frozenset(_DTYPES)),
        ),
    ),
    KernelSpecification(
        name="multi_tensor_lion",
        builder="FusedLionBuilder",
        mode=Mode.TRAINING,
        dtypes=_DTYPES,
        samples=LION_SAMPLES,
        oracle=lion_oracle,
        budget=BUDGET,
        reference=multi_tensor_lion,
        changes=("tensor_lists[1]", "tensor_lists[2]"),
        validate=functools.partial(_check_lists, ("gradients", "parameters", "moments")),
        refusals=REFUSALS,
        native=(
            triton_kernel("optimizers", "multi_tensor_lion", _DTYPES),
            Native(_compiled_lion, WHAT, dtypes=frozenset(_DTYPES)),
        ),
    ),
)

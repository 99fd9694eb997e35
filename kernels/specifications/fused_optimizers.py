"""Optimizer steps over lists of tensors, in one call: Adam, LAMB and Lion.

Where implementations in use disagree, this is decided: arithmetic is in float32 or wider whatever the storage, because
in float16 a second moment of 1e-6 is 0 and so is an epsilon of 1e-8. A set ``noop_flag`` leaves everything as it is:
the flag says that an overflow was found, the step would write NaN over parameters nobody has saved, and of the
implementations in use some obey it and some ignore it, so that only a caller who never relies on it is safe today.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_number, check_tensor_lists
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSpecification,
    Refusal,
    Sample,
)

_DTYPES = ("float32", "float16", "bfloat16")
_STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: Around vector widths, blocks of 512 and 16-bit counters.
SIZES = (1, 2, 7, 511, 512, 513, 65535, 65537)
#: Generating and comparing the large ones costs most of the time, and what loses a tail loses it in every dtype.
_LARGE_ONLY_IN = ("float32",)
MIXED = (3, 513, 1, 0, 1024)

#: Powers of two, so that 1 - beta is exact in float32 too: who passes scalars as float32 is not judged by that.
_BETA1, _BETA2, _EPS, _RATE, _DECAY = 0.875, 0.984375, 2.0**-10, 0.125, 0.25
BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=16.0,
    source="one rounding to the storage dtype, and a dozen float32 operations each within u of the terms they add "
    "(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1); betas are exact in float32",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """One Adam step on lists of gradients, parameters, first and second moments, in place.

    ``mode`` 0 adds the decay to the gradient (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1), 1 decays the
    parameter on its own (Loshchilov and Hutter, 2019, arXiv:1711.05101, algorithm 2). ``epsilon`` is added to the
    root of the corrected second moment. Infinities and NaN in gradients propagate. A non-zero ``noop_flag`` (a
    gradient overflowed) leaves everything as it is. ``chunk_size`` has no effect on values.
    """
    if int(noop_flag) != 0:
        return
    corrections = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    for gradient, parameter, mean, square in zip(*tensor_lists, strict=True):
        g, p, m, v = (_wide(tensor) for tensor in (gradient, parameter, mean, square))
        if mode == 0:
            g = g + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        update = (m / corrections[0]) / ((v / corrections[1]).sqrt() + epsilon)
        if mode == 1:
            update = update + weight_decay * p
        for target, value in ((parameter, p - lr * update), (mean, m), (square, v)):
            target.copy_(value)


def multi_tensor_lion(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """One Lion step on lists of gradients, parameters and moments, in place (Chen et al., 2023, arXiv:2302.06675).

    The sign of the interpolated moment moves the parameter, decoupled decay shrinks it, and the moment follows
    with ``beta2``. The sign of 0 is 0, as in the paper and in torch.sign: a parameter that never had a gradient does
    not move. ``step`` and ``chunk_size`` have no effect on values; ``noop_flag`` as for Adam.
    """
    if int(noop_flag) != 0:
        return
    for gradient, parameter, mean in zip(*tensor_lists, strict=True):
        g, p, m = (_wide(tensor) for tensor in (gradient, parameter, mean))
        direction = (beta1 * m + (1 - beta1) * g).sign()
        parameter.copy_(p - lr * (direction + weight_decay * p))
        mean.copy_(beta2 * m + (1 - beta2) * g)


def _wide(tensor: Tensor) -> Tensor:
    """At least float32, so that 16-bit parameters are updated without losing small steps on the way."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def adam_oracle(given: Arguments) -> Mapping[str, Expected]:
    """By increments (v + (1 - beta2)(g² - v)), and 1 - beta^t as -expm1(t log beta)."""
    found: dict[str, Expected] = {}
    if int(given["noop_flag"]):
        return _unchanged(given, 3)
    beta1, beta2, decay, step = (given[name] for name in ("beta1", "beta2", "weight_decay", "step"))
    correct1 = -torch.expm1(torch.tensor(beta1).double().log() * step).item() if given["bias_correction"] else 1.0
    correct2 = -torch.expm1(torch.tensor(beta2).double().log() * step).item() if given["bias_correction"] else 1.0
    for row, tensors in enumerate(zip(*given["tensor_lists"], strict=True)):
        grad, old, mean, square = (one.double() for one in tensors)
        coupled = decay if given["mode"] == 0 else 0.0
        direction, size = torch.add(grad, old, alpha=coupled), grad.abs() + coupled * old.abs()
        first = mean + (1.0 - beta1) * (direction - mean)
        second = square + (1.0 - beta2) * (direction.square() - square)
        first_scale = beta1 * mean.abs() + (1.0 - beta1) * size
        second_scale = beta2 * square.abs() + (1.0 - beta2) * size.square()
        root = torch.sqrt(second / correct2)
        moved = first / (correct1 * (root + given["epsilon"]))
        # An error of the second moment, relative to it, is half as large in its root.
        spread = torch.nan_to_num(second_scale / second, nan=1.0, posinf=1.0)
        terms = first_scale / (correct1 * (root + given["epsilon"])) + moved.abs() * spread
        shrink = decay if given["mode"] == 1 else 0.0
        new = old * (1.0 - given["lr"] * shrink) - given["lr"] * moved
        scale = old.abs() * (1.0 + given["lr"] * shrink) + given["lr"] * terms
        for position, (value, magnitude) in enumerate(
            ((new, scale), (first, first_scale), (second, second_scale)), start=1
        ):
            found[f"tensor_lists[{position}][{row}]"] = Expected(value, magnitude)
    return found


def lion_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Samples keep the interpolated moment away from 0, or exactly there: near it the sign is anybody's."""
    if int(given["noop_flag"]):
        return _unchanged(given, 2)
    found: dict[str, Expected] = {}
    beta1, beta2, rate, decay = (given[name] for name in ("beta1", "beta2", "lr", "weight_decay"))
    for row, tensors in enumerate(zip(*given["tensor_lists"], strict=True)):
        grad, old, mean = (one.double() for one in tensors)
        blend = grad + beta1 * (mean - grad)
        direction = torch.where(blend > 0, 1.0, torch.where(blend < 0, -1.0, blend))  # keeps 0, and NaN
        new = old - rate * decay * old - rate * direction
        found[f"tensor_lists[1][{row}]"] = Expected(new, old.abs() * (1 + rate * decay) + rate)
        follow = grad + beta2 * (mean - grad)
        found[f"tensor_lists[2][{row}]"] = Expected(follow, beta2 * mean.abs() + (1 - beta2) * grad.abs())
    return found


def _unchanged(given: Arguments, lists: int) -> Mapping[str, Expected]:
    """Every tensor but the gradients, as it is and without any error."""
    return {
        f"tensor_lists[{position}][{row}]": Expected(tensor.double(), allowed=torch.zeros(tensor.shape).double())
        for position in range(1, lists + 1)
        for row, tensor in enumerate(given["tensor_lists"][position])
    }


# --- samples ----------------------------------------------------------------------------------------------------------


def _as_they_are(lists: list[list[Tensor]]) -> None:
    """The usual lists."""


def _away_from_zero(generator: torch.Generator, size: int, dtype: torch.dtype) -> Tensor:
    """Of either sign, between 1/8 and 1 in magnitude."""
    magnitude = 0.125 + 0.875 * torch.rand(size, generator=generator, dtype=torch.float64)
    sign = 2 * torch.randint(0, 2, (size,), generator=generator) - 1
    return (magnitude * sign).to(dtype)


def _adam_lists(generator: torch.Generator, sizes: Sequence[int], dtype: torch.dtype) -> list[list[Tensor]]:
    """Gradients, parameters, moments. The rows of a moment of a later step: v is at least m squared."""
    gradients = [_away_from_zero(generator, size, dtype) for size in sizes]
    parameters = [_away_from_zero(generator, size, dtype) for size in sizes]
    means = [_away_from_zero(generator, size, dtype) * 0.5 for size in sizes]
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
    change: Callable[[list[list[Tensor]]], None] = _as_they_are,
    noop: int = 0,
    **numbers: float,
) -> Arguments:
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
    return _LARGE_ONLY_IN if size > 1 << 12 else ()


def _zero_state(lists: list[list[Tensor]]) -> None:
    """What a first step starts from."""
    for tensors in lists[2:]:
        for tensor in tensors:
            tensor.zero_()


def _tiny(lists: list[list[Tensor]]) -> None:
    """Gradients whose squares vanish in float16."""
    _zero_state(lists)
    for tensor in lists[0]:
        tensor.mul_(2.0**-10)


def _special(lists: list[list[Tensor]]) -> None:
    """NaN, infinities, zeros of both signs, and elements that stay usual."""
    for tensor in lists[0]:
        tensor[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])


def _zeros(lists: list[list[Tensor]]) -> None:
    """Rows that never had a gradient."""
    _zero_state(lists)
    for tensor in lists[0]:
        tensor[::2] = 0.0
        tensor[::4] = -0.0


_ADAM = {"adam": 0, "adamw": 1}
ADAM_SAMPLES = (
    Sample("mixed", functools.partial(_adam, sizes=MIXED)),
    *(
        Sample(f"{word}-{size}", functools.partial(_adam, sizes=(size,), mode=mode), _dtypes_at(size))
        for word, mode in _ADAM.items()
        for size in SIZES
    ),
    *(
        Sample(f"{word}-{what}", functools.partial(_adam, sizes=MIXED, mode=mode, **settings))
        for word, mode in _ADAM.items()
        for what, settings in {
            "first": {"step": 1, "change": _zero_state},
            "thousandth": {"step": 1000},
            "uncorrected": {"bias_correction": 0, "step": 2},
        }.items()
    ),
    Sample("empty", functools.partial(_adam, sizes=())),
    Sample("special", functools.partial(_adam, sizes=(67,), change=_special)),
    Sample("zeros", functools.partial(_adam, sizes=(67,), change=_zeros)),
    Sample("tiny", functools.partial(_adam, sizes=(67,), step=1, change=_tiny, epsilon=1e-8, weight_decay=0.0)),
    Sample("overflow", functools.partial(_adam, sizes=(67,), noop=1)),
)


def _lion(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    sizes: Sequence[int],
    change: Callable[[list[list[Tensor]]], None] = _as_they_are,
    noop: int = 0,
) -> Arguments:
    # The sign of moment and gradient is the same in three of four places; where it is not, the moment decides:
    # beta1 * 1/8 exceeds (1 - beta1) * 13/16.
    gradients = [_away_from_zero(generator, size, torch.float64) * 0.8125 for size in sizes]
    lists = [
        [one.to(dtype) for one in gradients],
        [_away_from_zero(generator, size, dtype) for size in sizes],
        [_away_from_zero(generator, size, dtype) for size in sizes],
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
    Sample("mixed", functools.partial(_lion, sizes=MIXED)),
    *(Sample(str(size), functools.partial(_lion, sizes=(size,)), _dtypes_at(size)) for size in SIZES),
    Sample("empty", functools.partial(_lion, sizes=())),
    Sample("special", functools.partial(_lion, sizes=(67,), change=_special)),
    Sample("zeros", functools.partial(_lion, sizes=(67,), change=_zeros)),
    Sample("overflow", functools.partial(_lion, sizes=(67,), noop=1)),
)


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_lists(names: Sequence[str], given: Arguments) -> None:
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


def _halve_moment(lists: list[list[Tensor]]) -> None:
    other = torch.bfloat16 if lists[2][0].dtype is torch.float16 else torch.float16
    lists[2][0] = lists[2][0].to(other)


def _stride_parameter(lists: list[list[Tensor]]) -> None:
    lists[:] = [[torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in tensors] for tensors in lists]


def _shorten(lists: list[list[Tensor]]) -> None:
    lists[1][0] = lists[1][0].repeat(2)


def _elsewhere(lists: list[list[Tensor]]) -> None:
    lists[1][0] = lists[1][0].to("meta")


REFUSALS = (
    Refusal("lengths", "tensor_lists[1]", functools.partial(_with_lists, change=_drop_last)),
    Refusal("dtypes", "tensor_lists[2][0]", functools.partial(_with_lists, change=_halve_moment)),
    Refusal("shapes", "tensor_lists[1][0]", functools.partial(_with_lists, change=_shorten)),
    Refusal("strides", "tensor_lists[0][0]", functools.partial(_with_lists, change=_stride_parameter)),
    Refusal("devices", "tensor_lists[1][0]", functools.partial(_with_lists, change=_elsewhere)),
    Refusal("lists", "tensor_lists", functools.partial(_with_lists, change=lambda lists: lists.pop())),
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
    ),
)

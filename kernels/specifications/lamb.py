"""LAMB step of one tensor: Adam's direction, scaled by a trust ratio of norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_number, check_tensor, wrong
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Refusal,
)
from conformance.kernels.triton.offering import triton_kernel

_GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)


def lamb(
    p: Tensor,
    p_copy: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    combined_scale: float,
    step: int,
    eps_mode: int,
    bias_correction: int,
    weight_decay: float,
) -> Tensor:
    """Update p, m and v in place by one LAMB step. Returns the trust ratio: float32, shape (1,), on p's device.

    You et al., 2020, arXiv:1904.00962, algorithm 2, with DeepSpeed's variations. The gradient is divided by
    ``combined_scale``; m and v are its moments. The direction is u = m / d + weight_decay * p, with d = sqrt(v + eps)
    for ``eps_mode`` 0 and d = sqrt(v) + eps for 1. The ratio is |p| / |u| (2-norms over all elements), clamped to
    [``min_coeff``, ``max_coeff``]. It is 1 if one of the norms is 0. Then p -= rate * ratio * u. Bias correction
    multiplies the rate by sqrt(1 - beta2^step) / (1 - beta1^step) and does not change the direction.

    p, m and v are float32. If ``p_copy`` has elements, it gets the new p in its own dtype, for every gradient dtype.
    Implementations in use disagree about the copy for float32 gradients; a caller that passes one reads it.
    """
    scaled = g.float() / combined_scale
    m.mul_(beta1).add_(scaled, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
    root = (v + eps).sqrt() if eps_mode == 0 else v.sqrt() + eps
    update = m / root + weight_decay * p
    norm, length = torch.linalg.vector_norm(p), torch.linalg.vector_norm(update)
    ratio = torch.where((norm != 0) & (length != 0), (norm / length).clamp(min_coeff, max_coeff), 1.0)
    rate = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if bias_correction else lr
    p.sub_(rate * ratio * update)
    if p_copy.numel():
        p_copy.copy_(p)
    return ratio.reshape(1)


def lamb_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Compute the step in float64, with the moments written as increments: m + (1 - beta)(g - m)."""
    old, mean, square, grad = (given[name].double().reshape(-1) for name in ("p", "m", "v", "g"))
    beta1, beta2, eps, decay = (given[name] for name in ("beta1", "beta2", "eps", "weight_decay"))
    grad = grad / given["combined_scale"]
    first = mean + (1 - beta1) * (grad - mean)
    second = square + (1 - beta2) * (grad.square() - square)
    bottom = torch.sqrt(second + eps) if given["eps_mode"] == 0 else torch.sqrt(second) + eps
    update = first / bottom + decay * old
    lengths = [math.sqrt(float(vector @ vector)) for vector in (old, update)]
    ratio = min(max(lengths[0] / lengths[1], given["min_coeff"]), given["max_coeff"]) if all(lengths) else 1.0
    rate = given["lr"]
    if given["bias_correction"]:
        rate *= math.sqrt(1 - beta2 ** given["step"]) / (1 - beta1 ** given["step"])
    first_scale = beta1 * mean.abs() + (1 - beta1) * grad.abs()
    # A sum of n squares in float32 has an error of about log2(n) roundings if it is added up in blocks.
    sums = 1 + math.log2(1 + old.numel())
    scale = old.abs() + rate * ratio * (first_scale / bottom + decay * old.abs() + update.abs() * sums)
    new, shape = old - rate * ratio * update, given["p"].shape
    found = {
        "p": Expected(new.reshape(shape), scale.reshape(shape)),
        "m": Expected(first.reshape(shape), first_scale.reshape(shape)),
        "v": Expected(second.reshape(shape)),
        "result": Expected(torch.tensor([ratio]).double(), torch.tensor([ratio * sums]).double(), dtype=torch.float32),
    }
    copied = given["p_copy"].numel() > 0
    return {**found, "p_copy": found["p"] if copied else Expected(given["p_copy"].double())}


def _call(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    size: int,
    parameter: float = 1.0,
    still: bool = False,
    copied: bool = True,
    change: Callable[[Arguments], None] | None = None,
    **numbers: Any,
) -> Arguments:
    """Return the arguments of one call.

    ``parameter`` scales p. ``still`` zeroes gradient and first moment, so that only decay can move p.
    """

    def draw() -> Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64) * 1.5 - 0.75

    mean, moving = (draw() * 0.5).float(), 0.0 if still else 1.0
    given: Arguments = {
        "p": (draw() * parameter).float(),
        "p_copy": torch.zeros(size if copied else 0, dtype=dtype),
        "m": mean * moving,
        "v": (mean.double().square() * 1.25 + 2.0**-6).float(),
        # The gradient arrives multiplied by the scale, as under loss scaling.
        "g": (draw() * moving * numbers.get("combined_scale", 1.0)).to(dtype),
        "lr": 0.125, "beta1": 0.875, "beta2": 0.984375, "max_coeff": 10.0, "min_coeff": 0.01, "eps": 2.0**-10,
        "combined_scale": 1.0, "step": 3, "eps_mode": 1, "bias_correction": 1, "weight_decay": 0.25,
    }  # fmt: skip
    if change is not None:
        change(given)
    return {**given, **numbers}


def _heavy_end(given: Arguments) -> None:
    """Make the last elements most of the norm, so that a reduction that loses them gives a wrong ratio."""
    given["p"][-64:] *= 64


def _refusal(case: str, name: str, change: Callable[[Tensor], Tensor]) -> Refusal:
    return Refusal(case, name, lambda given: {**given, name: change(given[name])})


def _validate(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors that do not fit the parameter, or numbers out of range."""
    p = check_tensor("p", given["p"], dtypes=(torch.float32,))
    for name in ("m", "v"):
        check_tensor(name, given[name], dtypes=(torch.float32,), like=p, device=p.device)
    check_tensor("g", given["g"], dtypes=_GRADIENTS, like=p, device=p.device)
    copy = check_tensor("p_copy", given["p_copy"], dtypes=_GRADIENTS, device=p.device)
    if copy.numel() and copy.shape != p.shape:
        raise wrong("p_copy", f"shape {tuple(p.shape)}, or no elements", tuple(copy.shape))
    for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "min_coeff", "max_coeff"):
        check_number(name, given[name], at_least=0.0)
    if given["combined_scale"] == 0:
        raise wrong("combined_scale", "a number other than 0", 0)
    check_number("step", given["step"], at_least=1)
    for name in ("eps_mode", "bias_correction"):
        check_choice(name, given[name], (0, 1))


#: More elements than one reduction of 512 blocks of 512 threads takes, with a tail.
_LARGE = 512 * 512 + 1027
_SAMPLES = (
    *(KernelSample(str(size), functools.partial(_call, size=size)) for size in (513, 1, 7)),
    KernelSample(str(_LARGE), functools.partial(_call, size=_LARGE, change=_heavy_end), ("float32",)),
    KernelSample("without-copy", functools.partial(_call, size=67, copied=False)),
    KernelSample("scaled", functools.partial(_call, size=67, combined_scale=16.0)),
    KernelSample("epsilon-inside", functools.partial(_call, size=67, eps_mode=0)),
    KernelSample("uncorrected", functools.partial(_call, size=67, bias_correction=0)),
    KernelSample("thousandth", functools.partial(_call, size=67, step=1000)),
    KernelSample("clamped-above", functools.partial(_call, size=67, max_coeff=0.0625)),
    KernelSample("clamped-below", functools.partial(_call, size=67, parameter=2.0**-12)),
    KernelSample("zero-parameter", functools.partial(_call, size=67, parameter=0.0)),
    KernelSample("zero-update", functools.partial(_call, size=67, still=True, weight_decay=0.0)),
)
_REFUSALS = (
    _refusal("dtypes", "m", lambda tensor: tensor.half()),
    _refusal("shapes", "g", lambda tensor: tensor[:-1].clone()),
    _refusal("strides", "p", lambda tensor: tensor.repeat(2)[::2]),
    _refusal("devices", "v", lambda tensor: tensor.to("meta")),
    _refusal("copies", "p_copy", lambda tensor: tensor[:3].clone()),
)

SPECIFICATIONS = (
    KernelSpecification(
        name="lamb",
        builder="FusedLambBuilder",
        mode=Mode.TRAINING,
        dtypes=("float32", "float16", "bfloat16"),
        samples=_SAMPLES,
        oracle=lamb_oracle,
        budget=ErrorBudget(
            rounding=1.0,
            conditioning=16.0,
            source="a dozen float32 operations each within u of the terms they add (Higham, Accuracy and Stability of "
            "Numerical Algorithms, 2nd ed., 3.1), the two norms by the terms of their sums; betas are exact in float32",
        ),
        reference=lamb,
        changes=("p", "p_copy", "m", "v"),
        validate=_validate,
        refusals=_REFUSALS,
        native=(triton_kernel("lamb", "lamb"),),
    ),
)

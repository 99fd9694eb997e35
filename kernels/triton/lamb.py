"""LAMB in three passes: moments with partial sums of two norms, reduction of the partial sums, parameters.

Each block writes its partial sums to memory; they are added up as a tree. Atomic additions would give different bits
every time. A single last block of fixed size would lose the partial sums that do not fit.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from conformance.kernels.triton.launching import BLOCK, current


@triton.jit
def _direction(
    p: tl.tensor, m: tl.tensor, v: tl.tensor, epsilon: tl.tensor, decay: tl.tensor,
    EPSILON_INSIDE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    root = tl.sqrt_rn(v + epsilon) if EPSILON_INSIDE else tl.sqrt_rn(v) + epsilon
    return tl.div_rn(m, root) + decay * p


@triton.jit
def _moments(
    parameters: tl.tensor, means: tl.tensor, squares: tl.tensor, gradients: tl.tensor, shares: tl.tensor,
    count: tl.tensor, beta1: tl.tensor, rest1: tl.tensor, beta2: tl.tensor, rest2: tl.tensor, epsilon: tl.tensor,
    decay: tl.tensor, divisor: tl.tensor,
    EPSILON_INSIDE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Update the moments, and sum the squares of parameters and direction for each program."""
    # 64-bit offsets: a tensor may have 2^31 elements or more.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    p = tl.load(parameters + offsets, mask=inside, other=0.0)
    m = tl.load(means + offsets, mask=inside, other=0.0)
    v = tl.load(squares + offsets, mask=inside, other=0.0)
    g = tl.div_rn(tl.load(gradients + offsets, mask=inside, other=0.0).to(tl.float32), divisor)
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    tl.store(means + offsets, m, mask=inside)
    tl.store(squares + offsets, v, mask=inside)
    # Past the end of the tensor the direction is 0 / 0 = NaN if epsilon is 0.
    update = tl.where(inside, _direction(p, m, v, epsilon, decay, EPSILON_INSIDE), 0.0)
    # Row 0 holds the partial sums of the parameter's norm, row 1 those of the direction's norm.
    tl.store(shares + tl.program_id(0), tl.sum(p * p))
    tl.store(shares + tl.num_programs(0) + tl.program_id(0), tl.sum(update * update))


@triton.jit
def _add_up(shares: tl.tensor, target: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Add up blocks of partial sums, one row for each norm."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    numbers = tl.load(shares + row * count + offsets, mask=offsets < count, other=0.0)
    tl.store(target + row * tl.num_programs(0) + tl.program_id(0), tl.sum(numbers))


@triton.jit
def _move(
    parameters: tl.tensor, copies: tl.tensor, means: tl.tensor, squares: tl.tensor, sums: tl.tensor, ratios: tl.tensor,
    count: tl.tensor, rate: tl.tensor, epsilon: tl.tensor, decay: tl.tensor, least: tl.tensor, most: tl.tensor,
    EPSILON_INSIDE: tl.constexpr, COPIED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Move the parameters by their direction times the trust ratio of the norms."""
    norm, length = tl.sqrt_rn(tl.load(sums)), tl.sqrt_rn(tl.load(sums + 1))
    ratio = tl.div_rn(norm, length)
    # Comparisons keep NaN; minimum and maximum of some targets do not.
    ratio = tl.where(ratio < least, least, ratio)
    ratio = tl.where(ratio > most, most, ratio)
    ratio = tl.where((norm != 0) & (length != 0), ratio, 1.0)
    # Every program computes the same ratio; one writes it.
    if tl.program_id(0) == 0:
        tl.store(ratios, ratio)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    p = tl.load(parameters + offsets, mask=inside, other=0.0)
    m = tl.load(means + offsets, mask=inside, other=0.0)
    v = tl.load(squares + offsets, mask=inside, other=0.0)
    # The direction is computed again: the first pass stored moments only.
    p -= rate * ratio * _direction(p, m, v, epsilon, decay, EPSILON_INSIDE)
    tl.store(parameters + offsets, p, mask=inside)
    if COPIED:
        tl.store(copies + offsets, p, mask=inside)


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
    """Run one LAMB step as specified."""
    ratio = torch.ones(1, dtype=torch.float32, device=p.device)
    if not p.numel():
        return ratio
    rate = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if bias_correction else lr
    blocks, inside = triton.cdiv(p.numel(), BLOCK), eps_mode == 0
    shares = torch.empty(2, blocks, dtype=torch.float32, device=p.device)
    numbers = map(float, (beta1, 1 - beta1, beta2, 1 - beta2, eps, weight_decay, combined_scale))
    with current(p):
        _moments[(blocks,)](p, m, v, g, shares, p.numel(), *numbers, EPSILON_INSIDE=inside, BLOCK=BLOCK)
        sums = _added_up(shares)
        _move[(blocks,)](
            p, p_copy, m, v, sums, ratio, p.numel(), *map(float, (rate, eps, weight_decay, min_coeff, max_coeff)),
            EPSILON_INSIDE=inside, COPIED=p_copy.numel() > 0, BLOCK=BLOCK,
        )  # fmt: skip
    return ratio


def _added_up(shares: Tensor) -> Tensor:
    """Return the sum of each row, shape (2, 1), in as many rounds as needed."""
    while shares.shape[1] > 1:
        blocks = triton.cdiv(shares.shape[1], BLOCK)
        sums = shares.new_empty(2, blocks)
        _add_up[(blocks, 2)](shares, sums, shares.shape[1], BLOCK=BLOCK)
        shares = sums
    return shares

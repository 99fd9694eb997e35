"""LayerNorm and RMSNorm over the last dimension, with optional residual sums; one program per row.

Statistics are in float32. Mean and variance take separate passes over the row; the cache holds it after the first.
The one-pass variance mean(x²) - mean(x)² loses all digits where the mean is large.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from conformance.kernels.triton.launching import current

#: Longest part of a row that is held in registers: 32 numbers for each thread of four warps. Longer rows are processed
#: in several parts.
LONGEST = 4096


@triton.jit
def _row(
    source: tl.tensor, bias: tl.tensor, residual: tl.tensor, base: tl.tensor, columns: tl.tensor, inside: tl.tensor,
    BIASED: tl.constexpr, RESIDUAL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load a part of one row, and add bias and residual to it."""
    found = tl.load(source + base + columns, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        found += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        found += tl.load(residual + base + columns, mask=inside, other=0.0).to(tl.float32)
    return found


@triton.jit
def _norm(
    source: tl.tensor, bias: tl.tensor, residual: tl.tensor, gamma: tl.tensor, beta: tl.tensor, target: tl.tensor,
    total: tl.tensor, width: tl.tensor, epsilon: tl.tensor,
    CENTRED: tl.constexpr, BIASED: tl.constexpr, RESIDUAL: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Normalise one row in float32, in passes of ``BLOCK`` columns."""
    base = tl.program_id(0).to(tl.int64) * width
    lanes = tl.arange(0, BLOCK)
    mean = 0.0
    if CENTRED:
        sums = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, width, BLOCK):
            columns = start + lanes
            sums += _row(source, bias, residual, base, columns, columns < width, BIASED, RESIDUAL)
        mean = tl.sum(sums) / width
    # A pass of its own: squares of differences from the mean do not cancel, as a difference of sums does.
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + lanes
        inside = columns < width
        x = _row(source, bias, residual, base, columns, inside, BIASED, RESIDUAL)
        # Past the end of the row x is 0, and 0 - mean must not enter the sum.
        away = tl.where(inside, x - mean, 0.0)
        squares += away * away
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares) / width + epsilon))
    for start in range(0, width, BLOCK):
        columns = start + lanes
        inside = columns < width
        x = _row(source, bias, residual, base, columns, inside, BIASED, RESIDUAL)
        result = (x - mean) * factor * tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            result += tl.load(beta + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + base + columns, result, mask=inside)
        if KEPT:
            tl.store(total + base + columns, x, mask=inside)


def layer_norm(input: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Compute LayerNorm as specified."""
    return _run(input, None, None, gamma, beta, epsilon, kept=False)[0]


def layer_norm_residual(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> Tensor:
    """Compute LayerNorm of input + bias + residual as specified."""
    return _run(input, bias, residual, gamma, beta, epsilon, kept=False)[0]


def layer_norm_residual_store_pre_ln_res(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """Compute LayerNorm of input + bias + residual, and the sum, as specified."""
    return _run(input, bias, residual, gamma, beta, epsilon, kept=True)


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Compute RMSNorm as specified."""
    return _run(input, None, None, gamma, None, epsilon, kept=False)[0]


def pre_rms_norm(input: Tensor, residual: Tensor, gamma: Tensor, epsilon: float) -> list[Tensor]:
    """Compute RMSNorm of input + residual, and the sum, as specified."""
    return _run(input, None, residual, gamma, None, epsilon, kept=True)


def _run(
    source: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    epsilon: float,
    *,
    kept: bool,
) -> list[Tensor]:
    """Return the norm, and also the sum that was normalised if ``kept``."""
    width = source.shape[-1]
    results = [torch.empty_like(source) for _ in range(1 + kept)]
    if source.numel():
        # Every pointer must be valid, even if the kernel reads nothing from it.
        bias_at, residual_at, beta_at = (source if tensor is None else tensor for tensor in (bias, residual, beta))
        with current(source):
            _norm[(source.numel() // width,)](
                source, bias_at, residual_at, gamma, beta_at, results[0], results[-1], width, float(epsilon),
                CENTRED=beta is not None, BIASED=bias is not None, RESIDUAL=residual is not None, KEPT=kept,
                # Triton's ranges have a power of two as length.
                BLOCK=min(triton.next_power_of_2(width), LONGEST),
            )  # fmt: skip
    return results

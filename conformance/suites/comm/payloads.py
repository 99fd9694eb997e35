"""What ranks put into collectives, numbers that every rank can compute for every other, and what has to come out."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from conformance.case import Case, seed_of

#: What backends carry. Others, and complex numbers, are told apart by `comm.dtype`.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
FLOATING = ("float32", "float64", "float16", "bfloat16")
INTEGER = ("int8", "uint8", "int32", "int64")
WORLDS = (2, 3, 4)

#: One element; a few, not a multiple of the ranks; one block more than buffers like to hold, with a remainder.
SIZES = {"1": 1, "13": 13, "256k3": (1 << 18) + 3}
#: More than 32 MiB of float32, where shared-memory buffers end.
HUGE = (32 << 20) // 4 + 5

OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def payload(case: Case, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The input of one rank, on the host. No sum or product of four of them leaves its dtype.

    A stretch of one block of random numbers, begun somewhere else for every case and rank: drawing them anew in every
    rank for every other took longer than the collectives.
    """
    if size > LONGEST:
        raise ValueError(f"a payload has at most {LONGEST} elements, not {size}")
    start = seed_of(f"{case.id}/{rank}") % (_BLOCK - size)
    stretch = (_floats() if dtype.is_floating_point else _integers())[start : start + size]
    return stretch.abs().to(dtype) if dtype is torch.uint8 else stretch.to(dtype, copy=True)


#: Of the block, so that payloads of the largest size have as many beginnings again.
LONGEST = 4 * ((1 << 18) + 3)
_BLOCK = 2 * LONGEST


@functools.cache
def _floats() -> torch.Tensor:
    """Away from zero: a product is then never subnormal."""
    generator = torch.Generator().manual_seed(_BLOCK)
    magnitude = 0.5 + 1.5 * torch.rand(_BLOCK, generator=generator, dtype=torch.float64)
    return magnitude * (2 * torch.randint(0, 2, (_BLOCK,), generator=generator) - 1)


@functools.cache
def _integers() -> torch.Tensor:
    """From -3 to 3."""
    return torch.randint(-3, 4, (_BLOCK,), generator=torch.Generator().manual_seed(_BLOCK))


def payloads(case: Case, world_size: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The inputs of all ranks, a row each."""
    return torch.stack([payload(case, rank, size, dtype) for rank in range(world_size)])


def reduced(inputs: torch.Tensor, op: str) -> torch.Tensor:
    """What a reduction of the rows is, in float64 or exactly."""
    wide = inputs.double() if inputs.is_floating_point() else inputs.long()
    if op in ("sum", "avg"):
        return wide.sum(0) / (inputs.shape[0] if op == "avg" else 1)
    if op == "product":
        return wide.prod(0)
    if op in ("min", "max"):
        return wide.amin(0) if op == "min" else wide.amax(0)
    combine = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op]
    result = wide[0]
    for row in wide[1:]:
        result = combine(result, row)
    return result


def check_reduced(check, result: torch.Tensor, inputs: torch.Tensor, op: str) -> None:
    """The result is the reduction of the rows: exactly, or with one rounding for each contribution and the division.

    Errors of sums and products are relative to the sum of magnitudes, and to the product.
    """
    expected, result = reduced(inputs, op), result.cpu()
    if not inputs.is_floating_point() or op in ("min", "max"):
        check.equal(result, expected.to(inputs.dtype), op)
        return
    magnitude = expected.abs() if op == "product" else inputs.double().abs().sum(0)
    error = ((result.double() - expected).abs() / magnitude).max().item()
    bound = (inputs.shape[0] + 1) * torch.finfo(inputs.dtype).eps / 2
    check.metric("error", error)
    check.that(error <= bound, f"{op} is off by {error:.3g} of the magnitudes; rounding explains {bound:.3g}")

"""Payloads of collectives, which every rank can compute for every other rank, and the expected results."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from conformance.plan.case import Case, seed_of

#: Dtypes that backends usually support. `comm.dtype` probes these and others one by one.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
FLOATING = ("float32", "float64", "float16", "bfloat16")
INTEGER = ("int8", "uint8", "int32", "int64")
WORLDS = (2, 3, 4)

#: Elements per payload: one; a few, not a multiple of the ranks; and more than a usual buffer, with a remainder.
SIZES = {"1": 1, "13": 13, "256k3": (1 << 18) + 3}
#: Elements between a few and the most, where libraries change how they send: beyond 1 KiB to 256 KiB of any dtype.
BETWEEN = (1027, 8195, 49157)
#: Elements of a float32 payload above 32 MiB, which is a common size of shared-memory buffers.
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


def ways(size: str) -> tuple[bool, ...]:
    """Return the values of ``async_op`` for a size: the shortest payload is also moved in the background."""
    return (False, True) if SIZES[size] == 1 else (False,)


def done(work: Any) -> None:
    """Wait for a collective that runs in the background."""
    if work is not None:
        work.wait()


def payload(case: Case, rank: int, size: int, dtype: torch.dtype, op: str = "") -> torch.Tensor:
    """Return the input of one rank on the host, with ``size`` elements.

    Integers have the whole range of their dtype, without 0 and FILLING. Signed ones are smaller for a sum or a product,
    and four payloads do not overflow: no library documents signed overflow. Unsigned sums and products wrap.
    A payload is a slice of one block of random numbers and starts at another index for every case and rank. Drawing new
    numbers for every rank took longer than the collectives.
    """
    if size > LONGEST:
        raise ValueError(f"a payload has at most {LONGEST} elements, not {size}")
    start = seed_of(f"{case.id}/{rank}") % (_BLOCK - size)
    if dtype.is_floating_point:
        floats = _floats()[start : start + size].to(dtype, copy=True)  # in-place collectives do not change the block
        return _with_special(floats) if op == MOVED else _spread(floats, op)
    return _ranged(_integers().view(dtype)[start : start + size], op)


def _with_special(floats: torch.Tensor) -> torch.Tensor:
    """Write values with bits of their own to some places: what only moves keeps its bits."""
    values = torch.tensor(
        [-0.0, float("inf"), float("nan"), torch.finfo(floats.dtype).max, -float("inf")], dtype=torch.float64
    )
    places = torch.arange(1, len(floats), 5)
    floats[places] = values.to(floats.dtype)[torch.arange(len(places)) % len(values)]
    return floats


#: Powers of two of the smallest and the largest numbers, of which no product of four leaves the dtype, and no sum.
_OF_PRODUCTS = {torch.float16: 2, torch.bfloat16: 28, torch.float32: 28, torch.float64: 200}
_OF_SUMS = {torch.float16: 12, torch.bfloat16: 124, torch.float32: 124, torch.float64: 1018}


def _spread(floats: torch.Tensor, op: str) -> torch.Tensor:
    """Make some numbers large and some small, in the same places on all ranks: a narrower dtype does not hold them."""
    factor = 2.0 ** (_OF_PRODUCTS if op == "product" else _OF_SUMS)[floats.dtype]
    floats[3::11] *= factor
    floats[7::11] /= factor
    return floats


def _ranged(bits: torch.Tensor, op: str) -> torch.Tensor:
    """Return a copy of random integers, in the range for an operation."""
    limits = torch.iinfo(bits.dtype)
    numbers = bits >> (2 if limits.min < 0 and op == "sum" else 0)
    if limits.min < 0 and op == "product":
        sign = 1 - 2 * ((bits >> (limits.bits // 2)) & 1)
        numbers = (bits.remainder(int(limits.max**0.25)) + 1) * sign
    return numbers.masked_fill_(numbers == 0, 1).masked_fill_(numbers == FILLING, FILLING + 1)


#: The operation of a payload that is moved and not reduced.
MOVED = "moved"
#: Fills memory that a collective writes to. No payload has this number.
FILLING = 77
#: Elements of the longest payload: four parts of the largest size.
LONGEST = 4 * ((1 << 18) + 3)
#: Elements of the block: twice the longest payload, so that even that one can start at many indices.
_BLOCK = 2 * LONGEST


@functools.cache
def _floats() -> torch.Tensor:
    """Return random floats of magnitudes 0.5 to 2, whose products are never subnormal."""
    generator = torch.Generator().manual_seed(_BLOCK)
    magnitude = 0.5 + 1.5 * torch.rand(_BLOCK, generator=generator, dtype=torch.float64)
    return magnitude * (2 * torch.randint(0, 2, (_BLOCK,), generator=generator) - 1)


@functools.cache
def _integers() -> torch.Tensor:
    """Return random integers of 64 bits."""
    generator = torch.Generator().manual_seed(_BLOCK)
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, (_BLOCK,), generator=generator)


def payloads(case: Case, world_size: int, size: int, dtype: torch.dtype, op: str = "") -> torch.Tensor:
    """Return the inputs of all ranks for an operation: shape (world_size, size), one row per rank."""
    return torch.stack([payload(case, rank, size, dtype, op) for rank in range(world_size)])


#: Operations whose result has the dtype of their rows.
_CHOOSING = {
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduced(inputs: torch.Tensor, op: str) -> torch.Tensor:
    """Return the reduction of the rows: wide enough for sums and products, and in their own dtype for the others."""
    if combine := _CHOOSING.get(op):
        return functools.reduce(combine, inputs.unbind())
    wide = inputs.double() if inputs.is_floating_point() else inputs.long()
    if op in ("sum", "avg"):
        return wide.sum(0) / inputs.shape[0] if op == "avg" else wide.sum(0)
    assert op == "product", op
    return wide.prod(0)


def check_reduced(check, result: torch.Tensor, inputs: torch.Tensor, op: str) -> None:
    """Check that the result is the reduction of the rows.

    Integers, minimum and maximum have to be exact. Otherwise one rounding is allowed for each contribution and one for
    the division. Errors of sums are relative to the sum of magnitudes, those of products to the product.
    """
    expected = reduced(inputs, op)
    if not inputs.is_floating_point() or op in ("min", "max"):
        check.equal(result.cpu(), expected.to(inputs.dtype), op)
        return
    result = check.result(result)
    magnitude = expected.abs() if op == "product" else inputs.double().abs().sum(0)
    error = ((result.double() - expected).abs() / magnitude).max().item()
    bound = (inputs.shape[0] + 1) * torch.finfo(inputs.dtype).eps / 2
    check.metric("error", error)
    check.that(error <= bound, f"the relative error of {op} is {error:.3g}, allowed {bound:.3g}")

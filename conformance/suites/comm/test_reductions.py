"""Cases for reductions: the host's values, with the same bits on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_AVERAGE, COMM_BITWISE, COMM_DTYPE, COMM_ROOTED, DTYPE
from conformance.plan.case import case

from .payloads import (
    BETWEEN,
    DTYPES,
    FLOATING,
    HUGE,
    INTEGER,
    OPS,
    SIZES,
    WORLDS,
    check_reduced,
    done,
    payloads,
    ways,
)

#: A number of every floating-point dtype; a tensor of 16 bits that was scaled for large ones has few digits for it.
_SMALL = 2.0**-12


def all_reduced(case, check, device, dtype, size, op, rank, world_size):
    """Reduce this rank's input and compare the result with the host's and between the ranks."""
    for length in (SIZES[size], *(BETWEEN if (op, size) == ("sum", "1") else ())):
        inputs = payloads(case, world_size, length, getattr(torch, dtype), op)
        for background in ways(size):
            buffer = inputs[rank].to(device, copy=True)  # without copy .to() returns the row itself on the host

            done(dist.all_reduce(buffer, OPS[op], async_op=background))

            check.same_on_all_ranks(f"{op} of {length}{' in the background' * background}", buffer)
            check_reduced(check, buffer, inputs, op)
    if size == "13" and op in ("sum", "avg") and inputs.is_floating_point():
        # A reduction that is scaled for the largest number of a tensor has other steps where all are small.
        small = torch.stack([torch.full_like(row, _SMALL) * (1 + number) for number, row in enumerate(inputs)])
        buffer = small[rank].to(device, copy=True)
        dist.all_reduce(buffer, OPS[op])
        check_reduced(check, buffer, small, op)


@case(
    "comm.all_reduce",
    requires=[COMM, DTYPE, COMM_DTYPE],
    axes={"op": ("sum", "product", "min", "max"), "dtype": DTYPES, "size": tuple(SIZES)},
    world_size=WORLDS,
)
def test_all_reduce(case, check, device, op, dtype, size, rank, world_size, group):
    """all_reduce gives the host's reduction within rounding, with the same bits on all ranks."""
    all_reduced(case, check, device, dtype, size, op, rank, world_size)


@case(
    "comm.all_reduce.wide",
    requires=[COMM, DTYPE, COMM_DTYPE],
    axes={"op": ("sum", "min", "max"), "dtype": ("int32", "int64")},
    world_size=WORLDS,
)
def test_wide(check, device, op, dtype, rank, world_size, group):
    """Integers that no float of their size holds are reduced exactly."""
    kind = getattr(torch, dtype)
    # Above 2^24 in 32 bits and above 2^53 in 64, and odd; four of them do not overflow.
    largest, steps = (1 << (28 if kind is torch.int32 else 60)), torch.arange(1027, dtype=torch.int64)
    rows = [(largest + 2 * steps + 1 + 514 * each) * (1 - 2 * (steps % 2)) for each in range(world_size)]
    right = {"sum": sum(rows), "min": torch.stack(rows).amin(0), "max": torch.stack(rows).amax(0)}[op].to(kind)
    buffer = rows[rank].to(kind).to(device)

    dist.all_reduce(buffer, OPS[op])

    check.equal(buffer.cpu(), right, f"the {op}")
    check.same_on_all_ranks(op, buffer)


@case(
    "comm.all_reduce.avg",
    requires=[COMM, COMM_AVERAGE, DTYPE, COMM_DTYPE],
    axes={"dtype": FLOATING, "size": tuple(SIZES)},
    world_size=WORLDS,
)
def test_average(case, check, device, dtype, size, rank, world_size, group):
    """ReduceOp.AVG gives the host's mean within rounding, with the same bits on all ranks."""
    all_reduced(case, check, device, dtype, size, "avg", rank, world_size)


@case(
    "comm.all_reduce.bits",
    requires=[COMM, COMM_BITWISE, DTYPE, COMM_DTYPE],
    axes={"op": ("band", "bor", "bxor"), "dtype": INTEGER},
    world_size=WORLDS,
)
def test_bits(case, check, device, op, dtype, rank, world_size, group):
    """Bitwise reductions give the host's result."""
    all_reduced(case, check, device, dtype, "13", op, rank, world_size)


@case("comm.all_reduce.huge", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": ("float32",)}, world_size=WORLDS)
def test_huge(check, device, dtype, rank, world_size, group):
    """all_reduce of more than 32 MiB gives the exact sum of every element."""
    positions = torch.arange(HUGE, dtype=torch.float32).remainder_(1021)  # small integers: float32 sums are exact
    buffer = (positions + rank).to(device)

    dist.all_reduce(buffer)

    check.equal(buffer.cpu(), positions * world_size + sum(range(world_size)), "the sum")


@case("comm.all_reduce.accumulation", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": ("float16", "bfloat16")},
      world_size=WORLDS)  # fmt: skip
def test_accumulation(check, device, dtype, rank, world_size, group):
    """16-bit sums are rounded to nearest and not truncated."""
    kind = getattr(torch, dtype)
    unit = torch.finfo(kind).eps
    # Each addend is more than half a unit in the last place of 1: truncation would lose it.
    buffer = torch.full((17,), 1.0 if rank == 0 else 0.75 * unit, dtype=kind, device=device)

    dist.all_reduce(buffer)

    least, most = 1.0 + unit, 1.0 + unit * (world_size - 1)
    value = buffer.double().cpu()
    check.same_on_all_ranks("sum", buffer)
    check.that(bool(((value >= least) & (value <= most)).all()), f"{value[0]} is not in [{least}, {most}]")


@case("comm.all_reduce.special", requires=[COMM, DTYPE, COMM_DTYPE],
      axes={"op": ("sum", "min", "max"), "dtype": FLOATING}, world_size=WORLDS)  # fmt: skip
def test_special(check, device, op, dtype, rank, world_size, group):
    """Reductions keep infinities, and a NaN of one rank gives all ranks the same bits."""
    inf, nan = float("inf"), float("nan")
    mine = [inf, -inf, -1.0 - rank, nan] if rank == 1 else [0.5, 0.5, -1.0 - rank, 0.5]
    buffer = torch.tensor(mine, dtype=getattr(torch, dtype), device=device)

    dist.all_reduce(buffer, OPS[op])

    check.same_on_all_ranks(op, buffer)
    every = -sum(range(1, world_size + 1))
    expected = {"sum": [inf, -inf, every], "min": [0.5, -inf, -world_size], "max": [inf, 0.5, -1.0]}[op]
    check.equal(buffer[:3].cpu(), torch.tensor(expected, dtype=buffer.dtype), op)
    # Only a sum has to be NaN; min and max may drop a NaN, if all ranks have the same bits.
    keeps_nan = bool(buffer[3].isnan().cpu())
    check.metric("nan", "kept" if keeps_nan else "dropped")
    check.that(op != "sum" or keeps_nan, "the sum with a NaN is not NaN")


@case("comm.all_reduce.layout", requires=[COMM], axes={"layout": ("slice", "transposed")}, world_size=WORLDS)
def test_layout(check, device, layout, rank, world_size, group):
    """all_reduce of a view without gaps changes only the elements of the view."""
    whole = torch.arange(35.0, device=device).reshape(5, 7) + rank
    before = whole.cpu().clone()

    dist.all_reduce(whole[1:3] if layout == "slice" else whole.t())

    expected = before.clone()
    part = expected[1:3] if layout == "slice" else expected
    part.copy_((part - rank) * world_size + sum(range(world_size)))
    check.equal(whole.cpu(), expected, "the tensor around the view")


@case("comm.reduce", requires=[COMM, COMM_ROOTED, DTYPE, COMM_DTYPE], axes={"op": ("sum", "max"), "dtype": DTYPES},
      world_size=WORLDS)  # fmt: skip
def test_reduce(case, check, device, op, dtype, rank, world_size, group):
    """A reduce gives any root the host's reduction, also by an operation of the same kind, on a group of one too."""
    for name in (op, {"sum": "product", "max": "min"}[op]):
        inputs = payloads(case, world_size, SIZES["13"], getattr(torch, dtype), name)
        for root in range(world_size):
            buffer = inputs[rank].to(device, copy=True)
            dist.reduce(buffer, root, OPS[name])
            if rank == root:
                check_reduced(check, buffer, inputs, name)
            check.that(True, "took part")  # ranks other than the root have nothing to compare
    if dtype == "float32" and world_size == min(WORLDS):
        alone = [dist.new_group([number]) for number in range(world_size)][rank]
        buffer = inputs[rank].to(device, copy=True)
        dist.reduce(buffer, rank, OPS[op], group=alone)
        check.equal(buffer.cpu(), inputs[rank], "what a group of one rank reduces")


@case("comm.reduce_scatter", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": ("1", "256k3")},
      world_size=WORLDS)  # fmt: skip
def test_reduce_scatter_tensor(case, check, device, dtype, size, rank, world_size, group):
    """reduce_scatter_tensor gives every rank its slice of the sum and does not change the input."""
    kind, length = getattr(torch, dtype), SIZES[size]
    inputs = payloads(case, world_size, length * world_size, kind, "sum")
    for background in ways(size):
        mine, source = torch.zeros(length, dtype=kind, device=device), inputs[rank].to(device)

        done(dist.reduce_scatter_tensor(mine, source, async_op=background))

        check_reduced(check, mine, inputs[:, rank * length : (rank + 1) * length], "sum")
        check.equal(source.cpu(), inputs[rank], "the input")


@case("comm.reduce_scatter.list", requires=[COMM], axes={"op": ("sum", "max")}, world_size=WORLDS)
def test_reduce_scatter_list(case, check, device, op, rank, world_size, group):
    """reduce_scatter gives every rank the reduction of its parts in the lists."""
    inputs = payloads(case, world_size, 5 * world_size, torch.float32)
    mine = torch.zeros(5, device=device)

    dist.reduce_scatter(mine, list(inputs[rank].to(device).chunk(world_size)), OPS[op])

    check_reduced(check, mine, inputs[:, rank * 5 : (rank + 1) * 5], op)


@case("comm.reduce_scatter.in_place", requires=[COMM], world_size=WORLDS)
def test_reduce_scatter_in_place(case, check, device, rank, world_size, group):
    """reduce_scatter_tensor works with the rank's own slice of the input as output, as in ZeRO."""
    inputs = payloads(case, world_size, 7 * world_size, torch.float32)
    buffer = inputs[rank].to(device, copy=True)

    dist.reduce_scatter_tensor(buffer[rank * 7 : (rank + 1) * 7], buffer)

    check_reduced(check, buffer[rank * 7 : (rank + 1) * 7], inputs[:, rank * 7 : (rank + 1) * 7], "sum")
    read = torch.arange(7 * world_size) // 7 != rank
    check.equal(buffer.cpu()[read], inputs[rank][read], "the parts of the input that are no output")


@case("comm.reduce_scatter.shards", requires=[COMM], world_size=WORLDS)
def test_shards_make_the_sum(check, device, rank, world_size, group):
    """Reduce-scatter followed by all-gather of a padded tensor gives the same values as all-reduce."""
    length, shard = 4097, -(-4097 // world_size)
    values = torch.arange(float(length), device=device) * (rank + 1)
    # Padding is NaN, so that it shows if it reaches a value.
    padded = torch.full((shard * world_size,), float("nan"), device=device)
    padded[:length] = values
    mine, back = torch.empty(shard, device=device), torch.empty(shard * world_size, device=device)

    dist.reduce_scatter_tensor(mine, padded)
    dist.all_gather_into_tensor(back, mine)
    dist.all_reduce(values)

    # Integers below 2^24, so float32 sums are exact.
    expected = torch.arange(float(length)) * sum(range(1, world_size + 1))
    check.equal(values.cpu(), expected, "the sum")
    check.equal(back[:length].cpu(), expected, "the gathered shards")


@case("comm.dtype", requires=[COMM_DTYPE], axes={"dtype": (*DTYPES, "int16", "bool", "complex64")}, world_size=2,
      adaptive=True)  # fmt: skip
def test_dtype(check, device, dtype, rank, world_size, group):
    """Collectives gather, broadcast and reduce a tensor of this dtype."""
    kind = getattr(torch, dtype)
    mine = torch.tensor([rank, 1, 0], device=device).to(kind)
    gathered = [torch.zeros_like(mine) for _ in range(world_size)]

    whole = torch.zeros(3 * world_size, device=device).to(kind)

    dist.all_gather(gathered, mine)
    dist.all_gather_into_tensor(whole, mine)
    dist.broadcast(mine, 1)
    dist.all_reduce(mine, dist.ReduceOp.MAX if kind is torch.bool else dist.ReduceOp.SUM)

    parts, due = (
        [part.cpu().tolist() for part in gathered],
        [torch.tensor([n, 1, 0]).to(kind) for n in range(world_size)],
    )
    check.equal(parts, [part.tolist() for part in due], "the gathered parts")
    check.equal(whole.cpu().tolist(), torch.cat(due).tolist(), "the parts gathered into one tensor")
    total = torch.tensor([1, 1, 0] if kind is torch.bool else [world_size, world_size, 0]).to(kind)
    check.equal(mine.cpu(), total, "the reduced tensor")


@case("comm.average", requires=[COMM_AVERAGE], world_size=2, adaptive=True)
def test_average_is_there(check, device, rank, group):
    """ReduceOp.AVG divides by the number of ranks."""
    buffer = torch.tensor([1.0 + 2 * rank], device=device)

    dist.all_reduce(buffer, dist.ReduceOp.AVG)

    check.equal(buffer.item(), 2.0, "the mean of 1 and 3")


@case("comm.bitwise", requires=[COMM_BITWISE], world_size=2, adaptive=True)
def test_bitwise_is_there(check, device, rank, group):
    """ReduceOp.BXOR combines the bits of all ranks."""
    buffer = torch.tensor([0b0110 if rank else 0b0011], device=device)

    dist.all_reduce(buffer, dist.ReduceOp.BXOR)

    check.equal(buffer.item(), 0b0101, "the bits in which the ranks differ")

"""All-reduce over shared memory compared with gloo: microseconds per call by size, in turn in the same processes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.ranks import on_ranks
from benchmarks.table import Row, main, times
from conformance.kernels.low_latency import LowLatencyAllReduce, Transport

SIZES = tuple(1 << power for power in range(10, 27, 2))  # 1 KiB … 64 MiB
GOAL_UP_TO = 64 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reduce-ranks", type=int, default=2, help="ranks on this host (default: 2)")
    parser.add_argument("--reduce-rounds", type=int, default=15, help="alternating rounds per size (default: 15)")
    parser.add_argument("--reduce-dtype", default="float32", help="element type (default: float32)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    dtype = getattr(torch, arguments.reduce_dtype)
    seconds = on_ranks(compare, arguments.reduce_ranks, dtype, arguments.reduce_rounds)
    return [_row(size, pair[0], pair[1], arguments) for size, pair in seconds.items()]


def compare(_rank: int, _size: int, dtype: torch.dtype, rounds: int) -> dict[int, tuple[float, float]]:
    """Return the median seconds of a call to gloo and of one over shared memory, by size in bytes."""
    medians = {}
    with LowLatencyAllReduce() as communicator:
        if communicator.transport is not Transport.SHARED_MEMORY:
            raise SystemExit(f"shared memory is not used: {communicator.why}")
        for size in SIZES:
            tensor = torch.zeros(size // dtype.itemsize, dtype=dtype)
            calls = max(3, min(200, (4 << 20) // size))
            sides: tuple[Callable[[torch.Tensor], object], ...] = (dist.all_reduce, communicator.all_reduce)
            rows = [tuple(_seconds(side, tensor, calls) for side in sides) for _ in range(rounds + 1)][1:]
            gloo, shared = (statistics.median(side) for side in zip(*rows, strict=True))
            medians[size] = (gloo, shared)
    return medians


def _seconds(call: Callable[[torch.Tensor], object], tensor: torch.Tensor, calls: int) -> float:
    """Return the median seconds of ``calls`` calls, which all ranks begin together."""
    dist.barrier()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call(tensor)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _row(size: int, gloo: float, shared: float, arguments: argparse.Namespace) -> Row:
    shown = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
    return Row(
        f"all-reduce of {shown} {arguments.reduce_dtype}, {arguments.reduce_ranks} ranks",
        f"{shared * 1e6:,.1f} µs",
        "≥ 3×" if size <= GOAL_UP_TO else "",
        f"{gloo * 1e6:,.1f} µs (gloo)",
        times(gloo / shared),
    )


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)

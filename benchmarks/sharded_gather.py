"""Bytes and time of gathering with the cast before or after the communication, and of a one-bit all-reduce."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.ranks import on_ranks
from benchmarks.table import Row, main, times
from conformance.kernels.compression import CompressedAllReduce
from conformance.kernels.sharded import ShardedParameters

#: Parameter shapes of a layer of a small transformer: projections, their biases, and norms.
SHAPES = ((1024, 3072), (3072,), (1024, 1024), (1024,), (1024,), (1024, 4096), (4096,), (4096, 1024), (1024,))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gather-rounds", type=int, default=15, help="alternating rounds (default: 15)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    (apart, fused), (sent_apart, sent_fused), singles = on_ranks(compare_gathers, 2, arguments.gather_rounds)
    (exact, compressed), sent = on_ranks(compare_reductions, 2, arguments.gather_rounds)
    numel = sum(torch.Size(shape).numel() for shape in SHAPES)
    return [
        Row("bytes a rank sends, gather cast to bfloat16 first", f"{sent_fused:,}", "½", f"{sent_apart:,} (cast last)",
            times(sent_apart / sent_fused)),
        Row("seconds for a layer's 9 parameters, cast first, fused", f"{fused:.4f}", "", f"{apart:.4f} (cast last)",
            times(apart / fused)),
        Row("seconds for the same, cast first, one by one", f"{singles:.4f}", "", f"{apart:.4f} (cast last)",
            times(apart / singles)),
        Row("bytes a rank sends, one-bit all-reduce of float32", f"{sent:,}", "≤ 1/25", f"{4 * numel:,} (ring)",
            times(4 * numel / sent)),
        Row("seconds for it, over loopback", f"{compressed:.4f}", "", f"{exact:.4f} (gloo)", times(exact / compressed)),
    ]  # fmt: skip


def compare_gathers(_rank: int, _size: int, rounds: int) -> tuple[tuple[float, float], tuple[int, int], float]:
    """Return seconds and bytes of casting last and of casting first (fused), and seconds of casting first one by one.

    Seconds are medians, bytes are those that a rank sends.
    """
    parameters = ShardedParameters()
    names = [str(index) for index in range(len(SHAPES))]
    for name, shape in zip(names, SHAPES, strict=True):
        parameters.add(name, torch.ones(shape))

    def apart() -> None:
        parameters.prefetch(dict.fromkeys(names))
        for name in names:
            parameters.gather(name).to(torch.bfloat16)

    def fused() -> None:
        parameters.prefetch(dict.fromkeys(names, torch.bfloat16))
        singly()

    def singly() -> None:
        for name in names:
            parameters.gather(name, torch.bfloat16)

    def clean() -> None:
        for name in names:
            parameters.release(name)

    sides = (apart, fused, singly)
    sent = [_bytes_of(side, clean, parameters) for side in sides]
    of_apart, of_fused, of_singly = _medians(sides, clean, rounds)
    return (of_apart, of_fused), (sent[0], sent[1]), of_singly


def compare_reductions(_rank: int, _size: int, rounds: int) -> tuple[tuple[float, ...], int]:
    """Return the median seconds of an exact and a one-bit all-reduce of the same numbers, and the latter's bytes."""
    buffer = torch.randn(sum(torch.Size(shape).numel() for shape in SHAPES))
    wire = CompressedAllReduce()
    feedback = wire.feedback(buffer)
    wire.all_reduce(buffer, feedback)
    sent = wire.bytes_sent
    sides = (lambda: dist.all_reduce(buffer), lambda: wire.all_reduce(buffer, feedback))
    return _medians(sides, lambda: buffer.fill_(1.0), rounds), sent


def _bytes_of(side: Callable[[], object], clean: Callable[[], object], parameters: ShardedParameters) -> int:
    before = parameters.bytes_sent
    side()
    clean()
    return parameters.bytes_sent - before


def _medians(sides: tuple[Callable[[], object], ...], clean: Callable[[], object], rounds: int) -> tuple[float, ...]:
    """Return the median seconds of each side, in turn; ``clean`` runs after each call and is not timed."""
    rows: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, row in zip(sides, rows, strict=True):
            dist.barrier()
            start = time.perf_counter()
            side()
            row.append(time.perf_counter() - start)
            clean()
    return tuple(statistics.median(row) for row in rows)


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)

"""Optimizer steps on host memory: our compiled kernels compared with PyTorch's fused and foreach steps and with a copy.

All sides are measured in one process, in turn; the results are medians. A step of Adam reads four arrays and writes
three. Its share of bandwidth is the bytes that it moves, divided by the bytes that the copy moves in the same time.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Row, main, times
from benchmarks.turns import Side, medians
from conformance.kernels.builders import find_builder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GOAL = "≥ 1.0×"


@dataclass(frozen=True)
class Contest:
    """Sides of one optimizer: our step, the peers' steps by name, and the bytes that a step moves per element."""

    name: str
    ours: Side
    peers: dict[str, Side]
    moved: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--optimizer-sizes", default="1M,100M", help="numbers of parameters (default: 1M,100M)")
    parser.add_argument("--optimizer-rounds", type=int, default=15, help="alternating rounds (default: 15)")
    parser.add_argument(
        "--optimizer-dtypes", default="float32,bfloat16", help="dtypes of parameters and state (default: both)"
    )


def measure(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for size in map(_number, arguments.optimizer_sizes.split(",")):
        for dtype in arguments.optimizer_dtypes.split(","):
            for make in (_adam, _adagrad, _lion):
                rows += list(_rows(make, size, dtype, arguments.optimizer_rounds))
    return rows


def _rows(make: Callable[[int, torch.dtype], Contest], size: int, dtype: str, rounds: int) -> Iterator[Row]:
    contest = make(size, DTYPES[dtype])
    source, target = torch.zeros(size, dtype=DTYPES[dtype]), torch.zeros(size, dtype=DTYPES[dtype])
    sides = {"ours": contest.ours, **contest.peers, "copy": lambda: target.copy_(source)}
    seconds = medians(sides, rounds)
    copied = 2 * size * source.element_size() / seconds["copy"]
    speed = size * contest.moved / seconds["ours"]
    share = f"{speed / 1e9:.1f} GB/s, {speed / copied:.0%} of a copy's"
    title = f"{contest.name}, {_shown(size)} parameters in {dtype}"
    best = min((seconds[name] for name in contest.peers), default=0.0)
    for name in contest.peers:
        goal = GOAL if seconds[name] == best else ""
        ratio = times(seconds[name] / seconds["ours"])
        yield Row(
            title, f"{seconds['ours'] * 1e3:.3g} ms ({share})", goal, f"{seconds[name] * 1e3:.3g} ms ({name})", ratio
        )


# --- the optimizers; every side has tensors of its own ---------------------------------------------------------------


def _adam(size: int, dtype: torch.dtype) -> Contest:
    functions = find_builder("CPUAdamBuilder")().load()
    functions.create_adam(1, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, False)
    p, g, m, v = _tensors(size, dtype, 4)
    peers = {f"torch.optim.AdamW({way}=True)": _of_torch(torch.optim.AdamW, size, dtype, way) for way in _WAYS}
    peers.update(_of_deepspeed(size, dtype))
    count = iter(range(1, 1 << 40))

    def ours() -> None:
        functions.adam_update(1, next(count), 1e-3, 0.9, 0.999, 1e-8, 0.01, True, p, g, m, v)

    return Contest("CPU Adam", ours, peers, 7 * dtype.itemsize)


def _adagrad(size: int, dtype: torch.dtype) -> Contest:
    functions = find_builder("CPUAdagradBuilder")().load()
    functions.create_adagrad(1, 1e-3, 1e-10, 0.01, False)
    p, g, v = _tensors(size, dtype, 3)
    peers = {f"torch.optim.Adagrad({way}=True)": _of_torch(torch.optim.Adagrad, size, dtype, way) for way in _WAYS}
    return Contest(
        "CPU Adagrad", lambda: functions.adagrad_update(1, 1, 1e-3, 1e-10, 0.01, p, g, v), peers, 5 * dtype.itemsize
    )


def _lion(size: int, dtype: torch.dtype) -> Contest:
    """Return the sides of Lion. PyTorch has no Lion, so the peer is the same step with its foreach operators."""
    functions = find_builder("CPULionBuilder")().load()
    functions.create_lion(1, 1e-3, 0.9, 0.99, 0.01, False)
    p, g, m = _tensors(size, dtype, 3)
    theirs = [[tensor] for tensor in _tensors(size, dtype, 3)]

    def foreach() -> None:
        parameters, gradients, means = theirs
        blends = torch._foreach_mul(means, 0.9)
        torch._foreach_add_(blends, gradients, alpha=0.1)
        torch._foreach_sign_(blends)
        torch._foreach_mul_(parameters, 1 - 1e-3 * 0.01)
        torch._foreach_add_(parameters, blends, alpha=-1e-3)
        torch._foreach_mul_(means, 0.99)
        torch._foreach_add_(means, gradients, alpha=0.01)

    return Contest(
        "CPU Lion",
        lambda: functions.lion_update(1, 1, 1e-3, 0.9, 0.99, 0.01, p, g, m),
        {"torch._foreach": foreach},
        5 * dtype.itemsize,
    )


_WAYS = ("fused", "foreach")


def _of_torch(kind: Any, size: int, dtype: torch.dtype, way: str) -> Side:
    parameter, gradient = _tensors(size, dtype, 2)
    parameter.requires_grad_()
    parameter.grad = gradient
    step: Side = kind([parameter], lr=1e-3, weight_decay=0.01, **{way: True}).step
    return step


def _of_deepspeed(size: int, dtype: torch.dtype) -> dict[str, Side]:
    """Return the step of DeepSpeed's CPUAdam, if it is installed; it compiles its own kernel first."""
    if importlib.util.find_spec("deepspeed") is None:
        return {}
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter, gradient = _tensors(size, dtype, 2)
    parameter.requires_grad_()
    parameter.grad = gradient
    fp32_state = dtype is torch.float32
    return {"DeepSpeedCPUAdam": DeepSpeedCPUAdam([parameter], lr=1e-3, weight_decay=0.01,
                                                 fp32_optimizer_states=fp32_state).step}  # fmt: skip


def _tensors(size: int, dtype: torch.dtype, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.rand(size, generator=generator).add_(0.1).to(dtype) for _ in range(count)]


def _number(text: str) -> int:
    factor = {"k": 10**3, "M": 10**6}.get(text[-1], 1)
    return int(float(text.rstrip("kM")) * factor)


def _shown(size: int) -> str:
    return f"{size / 1e6:g} M" if size >= 10**6 else f"{size:,}"


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)

"""Measurement on several ranks with a gloo group, one process per rank."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_ranks(body: Callable[..., Any], world_size: int, *arguments: Any) -> Any:
    """Call ``body(rank, world_size, *arguments)`` on every rank, with one thread each; return rank 0's result."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        processes = [
            context.Process(target=_member, args=(answers, body, rank, world_size, store, arguments))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    if failed:
        raise SystemExit(f"ranks {failed} failed; their tracebacks are above")
    return answers.get()


def _member(
    answers: Any, body: Callable[..., Any], rank: int, size: int, store: str, arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    answer = body(rank, size, *arguments)
    if rank == 0:
        answers.put(answer)
    dist.destroy_process_group()

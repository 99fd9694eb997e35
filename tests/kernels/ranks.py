"""Runs a function on several ranks: forked from a process that has imported torch, with a gloo group of their own."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

#: Seconds for all ranks together; they take one or two where nothing else runs.
DEADLINE = 90


@functools.cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    # torch._dynamo is what the first optimizer imports, for seconds.
    modules = ["torch._dynamo", "torch.distributed", "pytest", "conformance.kernels.compression"]
    context.set_forkserver_preload([*modules, "conformance.kernels.low_latency"])
    return context


def run_ranks(body: Callable[..., Any], world_size: int, *arguments: Any, dying: tuple[int, ...] = ()) -> list[Any]:
    """``body(rank, world_size, *arguments)`` on every rank; what they returned, or the first traceback.

    Ranks named ``dying`` may end without an answer, which is then None.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            receiving, sending = _context().Pipe(duplex=False)
            target = (sending, body, rank, world_size, Path(folder) / "store", arguments)
            process = _context().Process(target=_member, args=target, daemon=True)
            process.start()
            sending.close()
            pipes.append(receiving)
            processes.append(process)
        try:
            return _collect(pipes, dying)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], dying: tuple[int, ...]) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(waiting, timeout=DEADLINE)
        assert ready, f"ranks {sorted(set(range(len(pipes))) - set(answers))} did not answer in {DEADLINE} s"
        for pipe in ready:
            rank = next(index for index, candidate in enumerate(pipes) if candidate is pipe)
            try:
                failed, answers[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                failed, answers[rank] = "" if rank in dying else "ended without an answer", None
            assert not failed, f"rank {rank}: {failed}"
    return [answers[rank] for rank in range(len(pipes))]


def _member(
    pipe: Connection, body: Callable[..., Any], rank: int, size: int, store: Path, arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=DEADLINE)
        )
        answer = body(rank, size, *arguments)
    except BaseException:
        pipe.send_bytes(pickle.dumps((traceback.format_exc(), None)))
        raise
    # As bytes: torch would send tensors as shared memory, which ends with this process.
    pipe.send_bytes(pickle.dumps(("", answer)))

"""Direct calls of collectives on ranks of this machine: ``python -m tests.faults.pairs.direct FAULTS WORLD``."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from tests.faults.fault import Fault

from . import collectives


def work(rank: int, file: str, world: int, port: int) -> None:
    """Show on one rank which faults change what some rank gets; rank 0 writes their ids."""
    from conformance.accelerators.registry import resolve

    live = resolve("sim").load()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group(
        live.communication_backend_name(), rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    torch.set_num_threads(1)
    device = torch.device(live.device_name(rank % live.device_count()))
    groups = {size: dist.new_group(list(range(size))) for size in range(2, world + 1)}
    collectives.install()
    shown = []
    for fields in json.loads(Path(file).read_text(encoding="utf-8")):
        fault = Fault(**fields)
        right = _outcome(fault, device, groups)
        collectives.Armed.fault = fault
        wrong = _outcome(fault, device, groups)
        collectives.Armed.fault = None
        differs = torch.tensor([float(not _same(right, wrong))])
        every = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(every, differs)
        if any(bool(value) for value in every):
            shown.append(fault.id)
    if rank == 0:
        Path(file).with_suffix(".live.json").write_text(json.dumps(shown), encoding="utf-8")
    dist.destroy_process_group()


def _outcome(fault: Fault, device: torch.device, groups: dict[int, object]) -> list[torch.Tensor] | str:
    try:
        return collectives.direct(fault, device, groups)
    except (RuntimeError, ValueError) as error:
        return type(error).__name__


def _same(one: list[torch.Tensor] | str, other: list[torch.Tensor] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def main(file: str, world: str) -> None:
    """Start the ranks and wait for them."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(work, args=(file, int(world), port), nprocs=int(world))


if __name__ == "__main__":
    main(*sys.argv[1:])

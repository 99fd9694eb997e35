"""The simulated collective backend, with one rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("simccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_refused_collective_leaves_nothing_behind():
    with pytest.raises((RuntimeError, ValueError)):
        dist.broadcast(torch.ones(3, device="sim"), 5)

    again = torch.ones(3, device="sim")  # in the memory of the tensor before it
    dist.all_reduce(again)

    assert again.tolist() == [1.0] * 3


#: A rank that asks for the future of a sum, and counts in another thread meanwhile. The second rank comes late.
_COUNTING = """
import sys, threading, time
import torch
import torch.distributed as dist
import conformance.accelerators.simulated.torch_sim
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("simccl", store=store, rank=rank, world_size=2)
given = torch.ones(3, device="sim")
dist.all_reduce(given)
rounds = []
def count():
    while True:
        rounds.append(time.sleep(0.01))
threading.Thread(target=count, daemon=True).start()
if rank:
    time.sleep(1)
before = len(rounds)
work = dist.all_reduce(given, async_op=True)
future = work.get_future()
print(len(rounds) - before)
assert future.wait()[0].tolist() == [4.0] * 3
"""


def test_a_wait_for_a_collective_lets_other_threads_run(tmp_path: Path):
    # gloo's threads free Python's objects: a wait that keeps Python's lock, as for get_future(), can last forever.
    ranks = [
        subprocess.Popen([sys.executable, "-c", _COUNTING, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    first, second = (rank.communicate(timeout=60)[0] for rank in ranks)

    assert int(first) > 10
    assert int(second) >= 0

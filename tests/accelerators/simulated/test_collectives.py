"""The simulated collective backend, with one rank."""

from __future__ import annotations

from collections.abc import Iterator

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

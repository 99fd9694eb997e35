"""A model of DeepSpeed 0.19.8's launcher for tests: what one of its cases makes the machine do, in its order.

DeepSpeed publishes that launcher with its repository only, and pip gets packages without it. These are its steps: per
case a pool of processes from a fork server, a group over a file store and a barrier through ``deepspeed``, the body,
a barrier and the group's end in the same processes, the pool's end, and half a second of sleep. With
``reuse_dist_env`` the pool and its group stay until the last case, and the sleep stays as well.
"""

from __future__ import annotations

import os
import time
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, ClassVar

import deepspeed
import deepspeed.comm as dist
import pytest
import torch.multiprocessing as processes

_PATIENCE = 600.0
_REST = 0.5


class DistributedTest:
    """To be derived from, with tests as methods. A conftest calls the object with the request instead of the test."""

    world_size = 2
    reuse_dist_env = False
    _pool_cache: ClassVar[dict[int, Pool]] = {}
    _body: str
    _values: dict[str, Any]

    def __call__(self, request: pytest.FixtureRequest) -> None:
        self._body, self._values = request.function.__name__, dict(request.node.callspec.params)
        file = Path(request.getfixturevalue("tmp_path"), "store")
        pool = self._pool()
        try:
            ranks = [(rank, f"file://{file}") for rank in range(self.world_size)]
            pool.starmap_async(self._rank, ranks).get(_PATIENCE)
        finally:
            self._close_pool(pool, self.world_size)
        time.sleep(_REST)

    def _pool(self) -> Pool:
        processes.set_start_method("forkserver", force=True)
        if not self.reuse_dist_env:
            return processes.Pool(self.world_size)
        if self.world_size not in self._pool_cache:
            self._pool_cache[self.world_size] = processes.Pool(self.world_size)
        return self._pool_cache[self.world_size]

    def _rank(self, rank: int, store: str) -> None:
        if not dist.is_initialized():
            self._join(rank, store)
        getattr(self, self._body)(**self._values)

    def _join(self, rank: int, store: str) -> None:
        size = str(self.world_size)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_SIZE=size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # asked for, and not used by a file store
        deepspeed.init_distributed("gloo", init_method=store, rank=rank, world_size=self.world_size)
        dist.barrier()

    def _close_pool(self, pool: Pool, count: int, *, force: bool = False) -> None:
        if force or not self.reuse_dist_env:
            pool.starmap(_leave, [()] * count)
            pool.close()
            pool.join()


def _leave() -> None:
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()

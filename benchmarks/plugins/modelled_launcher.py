"""Model of DeepSpeed 0.19.8's test launcher, with the same steps in the same order.

Only DeepSpeed's repository has that launcher; the packages that pip installs do not. The steps of a case are: a pool of
processes from a fork server, a group over a file store and a barrier through ``deepspeed``, the body, a barrier and the
group's end in the same processes, the pool's end, and half a second of sleep. With ``reuse_dist_env`` the pool and its
group stay until the last case; the sleep stays as well.
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

_TIMEOUT = 600.0
_SLEEP = 0.5


class DistributedTest:
    """Base class of tests on ranks. A conftest calls the object with pytest's request in place of the test method."""

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
            pool.starmap_async(self._rank, ranks).get(_TIMEOUT)
        finally:
            self._close_pool(pool, self.world_size)
        time.sleep(_SLEEP)

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
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # DeepSpeed requires them
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

"""The process group of one round on one rank: fresh for every case, given back off the critical path."""

from __future__ import annotations

import os
import queue
import sys
import threading
from datetime import timedelta
from typing import Any

#: The pool's deadline comes first; a time-out inside a collective would hide where the ranks were.
_LONGER_THAN_THE_DEADLINE = 60.0


def identify(rank: int, world_size: int) -> None:
    """Say who this process is, in the variables that launchers set and libraries read."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )


class Groups:
    """Joins and leaves groups over one store, which every rank of the pool is a client of."""

    def __init__(self, store_port: int) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore("127.0.0.1", store_port, None, is_master=False, wait_for_workers=False)
        self._graveyard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reaper = threading.Thread(target=self._reap, name="conformance-groups", daemon=True)
        self._reaper.start()

    def join(self, nonce: str, backend: str, rank: int, world_size: int, deadline: float) -> Any:
        """A fresh default group. Keys of earlier rounds are out of reach behind the nonce."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        hook = sys.excepthook
        dist.init_process_group(
            backend,
            store=PrefixStore(nonce, self._store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=deadline + _LONGER_THAN_THE_DEADLINE),
        )
        sys.excepthook = hook  # each call wraps it once more
        return dist.group.WORLD

    def leave(self) -> None:
        """Give back every group. Joining their threads takes 20 ms, so another thread drops the last reference."""
        import torch.distributed as dist

        if dist.is_initialized():
            world = dist.group.WORLD
            dist.destroy_process_group()
            self._graveyard.put(world)

    def _reap(self) -> None:
        while True:
            self._graveyard.get()

"""The process group of one round on one rank: fresh for every case, given back off the critical path."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from conformance.ranks.gloo import share_devices
from conformance.ranks.messages import Join

#: The pool's deadline comes first; a time-out inside a collective would hide where the ranks were.
_LONGER_THAN_THE_DEADLINE = 60.0


def identify(rank: int, world_size: int, local: Sequence[int] | None = None) -> None:
    """Say who this process is, in the variables that launchers set and libraries read."""
    local_rank, local_world_size = local or (rank, world_size)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    os.environ.update(zip(names, map(str, (rank, world_size, local_rank, local_world_size)), strict=True))


class Groups:
    """Joins and leaves groups over one store, which every rank of the pool is a client of."""

    def __init__(self, store_host: str, store_port: int) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore(store_host, store_port, None, is_master=False, wait_for_workers=False)
        share_devices()
        self._graveyard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reaper = threading.Thread(target=self._reap, name="conformance-groups", daemon=True)
        self._reaper.start()
        self._ahead = ""
        self._trouble: Exception | None = None

    def prepare(self, join: Join, backend: str) -> None:
        """Make the group of a round before its work is there. What goes wrong is told to who joins."""
        self._ahead = join.nonce
        try:
            self._make(join.nonce, backend, join.rank, join.world_size, join.deadline)
        except Exception as error:  # noqa: BLE001 - kept, and raised where a case is there to fail of it
            self._trouble = error

    def join(self, nonce: str, backend: str, rank: int, world_size: int, deadline: float) -> Any:
        """A fresh default group, which may have been made ahead."""
        import torch.distributed as dist

        ahead, trouble = self._ahead, self._trouble
        self._ahead, self._trouble = "", None
        if nonce != ahead:
            self._make(nonce, backend, rank, world_size, deadline)
        elif trouble is not None:
            raise trouble
        return dist.group.WORLD

    def _make(self, nonce: str, backend: str, rank: int, world_size: int, deadline: float) -> None:
        """Become a member. Keys of earlier rounds are out of reach behind the nonce."""
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

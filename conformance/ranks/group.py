"""The process group of one case on one rank: a new group for every case, destroyed outside of the measured path."""

from __future__ import annotations

import functools
import gc
import os
import queue
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

#: Seconds that the group's own timeout exceeds the case's deadline. The pool's deadline has to come first: a timeout
#: inside a collective would hide where the ranks were.
_BEYOND_THE_DEADLINE = 60.0


def set_rank_environment(rank: int, world_size: int, local: Sequence[int] | None = None) -> None:
    """Set the variables that launchers set and libraries read: RANK, WORLD_SIZE and their local counterparts."""
    local_rank, local_world_size = local or (rank, world_size)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    os.environ.update(zip(names, map(str, (rank, world_size, local_rank, local_world_size)), strict=True))


def forget_meshes() -> str:
    """Let DTensor forget the meshes of a case; return why this process must not join another group, or "".

    DTensor keeps what it has dispatched, with its meshes, which find their groups by name. Groups of a later case have
    other members under the same names, so an equal mesh of an earlier case would find destroyed groups.
    """
    if not _meshes():
        return ""
    from torch.distributed.tensor import _redistribute, debug

    for module, name in ((debug, "_clear_sharding_prop_cache"), (_redistribute, "clear_redistribute_planner_cache")):
        getattr(module, name, lambda: None)()
    for cache in _caches():
        cache.cache_clear()
    gc.collect()
    # Not a list of caches is the proof, which another version of torch may lengthen.
    if _meshes():
        return "it kept a mesh of destroyed groups"
    gc.freeze()  # what a case has imported holds no mesh, and is not searched again
    return ""


def _meshes() -> list[Any]:
    """Return the meshes in this process; none are among the objects that are frozen for the collector."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    # Not isinstance(), which asks the objects of other libraries for their class.
    return [each for each in gc.get_objects() if type(each) is kind] if kind else []


def _caches() -> list[Any]:
    """Return the caches of DTensor's functions and methods."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed.tensor.")]
    own = [value for module in modules for value in vars(module).values()]
    methods = [value for kind in own if isinstance(kind, type) for value in vars(kind).values()]
    found = [getattr(each, "__func__", each) for each in (*own, *methods)]
    return [each for each in found if isinstance(each, functools._lru_cache_wrapper)]


class Groups:
    """Creates and leaves process groups over one store, of which every rank of the pool is a client."""

    def __init__(self, store_host: str, store_port: int) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore(store_host, store_port, None, is_master=False, wait_for_workers=False)
        self._left: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reaper = threading.Thread(target=self._reap, name="conformance-groups", daemon=True)
        self._reaper.start()
        gc.freeze()  # torch itself, which holds no mesh: a search for meshes takes a tenth of the time

    def join(self, nonce: str, backend: str, rank: int, world_size: int, deadline: float) -> Any:
        """Create the default group of a case and return it. ``deadline`` is the case's, in seconds."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        hook = sys.excepthook
        dist.init_process_group(
            backend,
            # The nonce as a prefix hides the keys of earlier cases.
            store=PrefixStore(nonce, self._store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=deadline + _BEYOND_THE_DEADLINE),
        )
        sys.excepthook = hook  # each call of init_process_group wraps the hook once more
        return dist.group.WORLD

    def leave(self) -> str:
        """Destroy all groups. Return why this process must not join another one, or "".

        Another thread drops the last reference, as joining a group's threads takes 20 ms.
        """
        import torch.distributed as dist

        if dist.is_initialized():
            world = dist.group.WORLD
            dist.destroy_process_group()
            self._left.put(world)
        return forget_meshes()

    def _reap(self) -> None:
        """Drop the references to groups that were left, for ever."""
        while True:
            self._left.get()

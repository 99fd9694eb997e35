"""Process groups: rank and size for kernels that communicate."""

from __future__ import annotations

import torch.distributed as dist

from conformance.base.errors import UsageError


def member_of(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return this process's rank in ``group`` (None: the default group) and the group's size.

    Raises UsageError without an initialized process group, and on a rank outside ``group``.
    """
    if not dist.is_initialized():
        raise UsageError("there is no process group.\n  call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise UsageError("this process is not a rank of the group.\n  create the object on ranks of the group only")
    return dist.get_rank(group), dist.get_world_size(group)

"""A process group, as the kernels that need one ask for it."""

from __future__ import annotations

import torch.distributed as dist

from conformance.errors import UsageError


def member_of(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This process' rank in ``group`` (all ranks if None), and the group's size.

    Raises UsageError without an initialized process group, and on a rank outside ``group``.
    """
    if not dist.is_initialized():
        raise UsageError("there is no process group.\n  call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise UsageError("this process is not a rank of the group.\n  make the object on the group's ranks only")
    return dist.get_rank(group), dist.get_world_size(group)

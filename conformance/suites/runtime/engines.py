"""The engines that train one model on many ranks, as functions of the same shape."""

from __future__ import annotations

import contextlib

from .training import ADAM, adam, sgd


def ddp(built, device, world_size):
    """Whole weights on every rank, gradients averaged."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(built.to(device))
    return wrapped, sgd(wrapped.parameters())


def zero(built, device, world_size):
    """The same, each rank keeping the optimizer state of some parameters."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(built.to(device))
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, **ADAM)


def sharded(built, device, world_size, **options):
    """Weights, gradients and states cut over ranks; ``options`` are fully_shard's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    built = built.to(device)
    for layer in (built.first, built.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(built, mesh=mesh, **options)


def fsdp(built, device, world_size):
    """Weights gathered for each layer, forward and backward anew."""
    wrapped = sharded(built, device, world_size)
    return wrapped, adam(wrapped.parameters())


def fsdp_kept(built, device, world_size):
    """Weights gathered once for forward and backward."""
    wrapped = sharded(built, device, world_size, reshard_after_forward=False)
    return wrapped, sgd(wrapped.parameters())


#: Engine → what builds model and optimizer, and the same optimizer for one process.
ENGINES = {"ddp": (ddp, sgd), "zero": (zero, adam), "fsdp": (fsdp, adam), "fsdp-kept": (fsdp_kept, sgd)}


@contextlib.contextmanager
def without_reduction(wrapped):
    """Backward passes inside add gradients up on their rank."""
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(False)
        yield
        wrapped.set_requires_gradient_sync(True)
    else:
        with wrapped.no_sync():
            yield

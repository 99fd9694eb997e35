"""Data-parallel engines of PyTorch. Each function returns the wrapped model and its optimizer."""

from __future__ import annotations

import contextlib

from .training import ADAM, adam, sgd


def ddp(built, device, world_size):
    """Wrap the model for DistributedDataParallel: every rank has all weights, and gradients are averaged."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(built.to(device))
    return wrapped, sgd(wrapped.parameters())


def zero(built, device, world_size):
    """Wrap the model for DDP with ZeroRedundancyOptimizer: a rank keeps the optimizer state of some parameters."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(built.to(device))
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, **ADAM)


def sharded(built, device, world_size, **options):
    """Return the model with weights, gradients and states sharded over ranks; ``options`` are those of fully_shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    built = built.to(device)
    for layer in (built.first, built.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(built, mesh=mesh, **options)


def fsdp(built, device, world_size):
    """Wrap the model for FSDP2 that gathers each layer's weights for the forward and again for the backward pass."""
    wrapped = sharded(built, device, world_size)
    return wrapped, adam(wrapped.parameters())


def fsdp_kept(built, device, world_size):
    """Wrap the model for FSDP2 that gathers each layer's weights once for the forward and the backward pass."""
    wrapped = sharded(built, device, world_size, reshard_after_forward=False)
    return wrapped, sgd(wrapped.parameters())


#: By engine: the function that builds model and optimizer, and the same optimizer for one process.
ENGINES = {"ddp": (ddp, sgd), "zero": (zero, adam), "fsdp": (fsdp, adam), "fsdp-kept": (fsdp_kept, sgd)}


@contextlib.contextmanager
def without_reduction(wrapped):
    """Accumulate gradients locally: backward passes inside this context communicate nothing."""
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(False)
        yield
        wrapped.set_requires_gradient_sync(True)
    else:
        with wrapped.no_sync():
            yield

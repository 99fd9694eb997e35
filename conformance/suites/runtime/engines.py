"""Data-parallel engines of PyTorch. Each function returns the wrapped model and its optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.accelerators.capabilities import COMM_AVERAGE, COMM_DTYPE

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


#: DDP compares shapes and buckets of the ranks by collectives of integers (torch/csrc/distributed/c10d/reducer.cpp:
#: ``verify_params_across_processes`` and ``sync_bucket_indices``). It averages gradients by division on each rank.
DDP_NEEDS = (COMM_DTYPE.on("int32"), COMM_DTYPE.on("int64"))
#: FSDP2 lets the backend compute the average over ranks.
FSDP_NEEDS = (COMM_AVERAGE,)


@dataclass(frozen=True)
class Engine:
    """Engine: builder of model and optimizer, the same optimizer for one process, and requirements besides comm."""

    build: Callable[..., Any]
    optimizer: Callable[..., Any]
    needs: tuple[Any, ...]


ENGINES = {
    "ddp": Engine(ddp, sgd, DDP_NEEDS),
    "zero": Engine(zero, adam, DDP_NEEDS),
    "fsdp": Engine(fsdp, adam, FSDP_NEEDS),
    "fsdp-kept": Engine(fsdp_kept, sgd, FSDP_NEEDS),
}


def engines(*names):
    """Return an axis of these engines, or of all, with the requirements of each."""
    return {name: ENGINES[name].needs for name in names or ENGINES}


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

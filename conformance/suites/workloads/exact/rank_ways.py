"""Exact trainings on ranks whose engine is compiled, or keeps parameters or activations on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .families import Family, families
from .ranks import check_engine, check_parts, replicated, sharded

#: Families that are compiled and offloaded: products and bent activations, and a table that gradients reach twice.
COMPILED, OFFLOADED = ("bent",), ("bent", "bags")


def offloaded_shards(model: nn.Module) -> nn.Module:
    """Return the model under FSDP2 whose parts of parameters, gradients and momenta stay on the host."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # Memory that is not pinned: every device can copy from it.
    return fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


def check_offloaded(check: Any, device: torch.device) -> None:
    """Check that families whose state or activations are on the host have the bits of one process."""
    for name in OFFLOADED:
        check_offloaded_shards(check, families()[name], device)
        check_offloaded_activations(check, families()[name], device)


def check_offloaded_shards(check: Any, family: Family, device: torch.device) -> None:
    """Check a family under FSDP2 with parameters on the host: the batch goes to the device all the same."""
    model = offloaded_shards(family.initial().to(device))
    check_parts(check, "fsdp2 offloaded", family, model, device)
    held = {value.device.type for value in model.parameters()}
    check.that(held == {"cpu"}, f"the parameters are on {held}")


def check_offloaded_activations(check: Any, family: Family, device: torch.device) -> None:
    """Check a family under DDP whose activations wait on the host for the backward pass."""
    with torch.autograd.graph.save_on_cpu():
        check_engine(check, "ddp offloaded", family, replicated, device)


def check_compiled(check: Any, device: torch.device) -> None:
    """Check that families under a compiled engine have the bits of one process.

    The compiler's own kernels are judged in one process. Here it only traces: what is judged are the engine's hooks
    and gathers around a traced graph.
    """
    for engine in COMPILED_ENGINES:
        for name in COMPILED:
            check_compiled_engine(check, engine, families()[name], device)


#: Engines that are compiled, by name.
COMPILED_ENGINES: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": DistributedDataParallel, "fsdp2": sharded}


def check_compiled_engine(check: Any, engine: str, family: Family, device: torch.device) -> None:
    """Check a family under a compiled engine, of which something has to be traced."""

    def compiled(model: nn.Module) -> nn.Module:
        model = COMPILED_ENGINES[engine](model)
        model.compile(backend="aot_eager")
        return model

    with _traced() as counted:
        check_engine(check, f"{engine} compiled", family, compiled, device)
    check.that(counted() > 0, f"{engine} compiled: no graph was traced")


@contextlib.contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many graphs were traced inside."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()  # graphs of an earlier model would be reused
    counters.clear()
    try:
        yield lambda: int(counters["stats"]["unique_graphs"])
    finally:
        torch._dynamo.reset()

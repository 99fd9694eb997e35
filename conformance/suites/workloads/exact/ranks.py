"""Exact trainings on ranks: each engine gives the bits of one process, and a difference names its place."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, Cell
from conformance.suites.rank_functions import Group
from conformance.suites.workloads.parallel.checkpoints import load, save
from conformance.suites.workloads.parallel.layouts import LAYOUTS, Learning, Trained, ranks_of
from conformance.suites.workloads.parallel.models import IMPORTS, QUICK_LAYERS

from .decoder import Decoder
from .experts import ParallelExperts
from .families import Family, Linear, families, hinge, tokens
from .reference import Comparison
from .training import named_gradients, named_weights, own_names, placed

#: What ranks import before they are forked.
RANK_IMPORTS = tuple(name for name in IMPORTS if not name.startswith("transformers"))
#: What every case on ranks needs.
NEEDS = (COMM.cell, COMM_DTYPE.on("float32"), Cell("workloads.exact", "float32", "training"))
#: Micro-batches of a pipeline: a power of two, because the engine divides gradients by it.
MICRO_BATCHES = 4
#: Size of DDP's buckets in MiB: small enough that every model has several.
_BUCKET = 0.0002


@functools.cache
def decoder(layers: int) -> Family:
    """Return the family of decoders with so many layers.

    Gradients grow with the layers, and rates that change many whole weights let them grow further. A smaller rate gives
    the weights more bits. So more layers are exact for fewer steps; the proof says for how many.
    """
    rate, steps = (2.0**-9, 3) if layers <= QUICK_LAYERS else (2.0**-10, 2)
    return Family(f"decoder-{layers}", functools.partial(Decoder, layers), tokens, hinge, rate, steps)


def learning(family: Family) -> Learning:
    """Return the loss and the optimizer of a family for a layout."""
    return Learning(
        lambda model, inputs, targets: family.loss(model(inputs), targets),
        family.loss,
        family.optimizer,
        MICRO_BATCHES,
    )


def check_engine(
    check: Any, kind: str, family: Family, wrap: Callable[[nn.Module], nn.Module], device: torch.device
) -> None:
    """Check a family under an engine that cuts the batch: one part for every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = wrap(family.initial().to(device))
    trained = Trained(model, family.optimizer(model), (rank, ranks), learning=learning(family))
    compared = Comparison(family, rank=rank, kind=f"{kind}: ")
    _train(compared, trained, family, range(family.steps), device)
    compared.tell(check)


def check_parts(
    check: Any,
    kind: str,
    family: Family,
    model: nn.Module,
    device: torch.device,
    *,
    dim: int = 0,
    reduce: Callable[[], None] = lambda: None,
) -> None:
    """Check a model of which each rank trains on its part of every batch, along ``dim``, wherever its parameters are.

    ``reduce`` follows each backward pass, for a model that does not reduce its gradients by itself.
    """
    group = Group.of_all()
    optimizer, compared = family.optimizer(model), Comparison(family, rank=group.number, kind=f"{kind}: ")
    for step in range(family.steps):
        inputs, targets = (group.part(each, dim) for each in placed(family.batches()[step], device, torch.float32))
        optimizer.zero_grad()
        with _watched(compared, model, step):
            loss = family.loss(model(inputs), targets)
            loss.backward()
        reduce()
        compared.gradients(step, named_gradients(model))
        optimizer.step()
        compared.weights(step, named_weights(model))
        _compare_loss(compared, step, float(loss.detach()), group.size, device)
    compared.tell(check)


def check_layout(check: Any, name: str, ranks: int, device: torch.device) -> None:
    """Check the decoder under a layout of parallel/layouts.py."""
    family = decoder(LAYOUTS[name].layers(ranks))
    trained = LAYOUTS[name].build(family.initial(), device, ranks, learning(family))
    compared = Comparison(family, rank=dist.get_rank(), kind=f"{name}: ")
    _train(compared, trained, family, range(family.steps), device)
    compared.tell(check)


def check_resumed(check: Any, before: str, after: str, ranks: int, folder: Path, device: torch.device) -> None:
    """Check that the decoder saved under one layout before its last step, and loaded under another, goes on exactly."""
    family = decoder(max(LAYOUTS[name].layers(ranks) for name in (before, after)))
    compared = Comparison(family, rank=dist.get_rank(), kind=f"{before} resumed as {after}: ")
    trained = LAYOUTS[before].build(family.initial(), device, ranks, learning(family))
    _train(compared, trained, family, range(family.steps - 1), device)
    save(trained, folder, dist.group.WORLD)
    dist.barrier()
    # Other weights than the saved ones, so that a parameter that is not loaded is wrong.
    other = LAYOUTS[after].build(family.build(), device, ranks, learning(family))
    load(other, folder, dist.group.WORLD)
    compared.weights(family.steps - 2, named_weights(other.model))
    compared.momenta(family.steps - 2, _momenta(other))
    _train(compared, other, family, range(family.steps - 1, family.steps), device)
    compared.tell(check)


def check_resumed_elsewhere(check: Any, before: str, after: str, folder: Path, device: torch.device) -> None:
    """Check that the decoder saved on some ranks, such as ``fsdp2@4``, goes on exactly on others, such as ``tp@2``."""
    (saving, first), (loading, second) = ranks_of(before), ranks_of(after)
    family = decoder(max(LAYOUTS[saving].layers(first), LAYOUTS[loading].layers(second)))
    kind = f"{before} resumed as {after}: "
    compared = Comparison(family, rank=dist.get_rank(), kind=kind)
    # new_group() is a collective: all ranks make all groups, in the same order.
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({first, second})}
    trained = LAYOUTS[saving].build(family.initial(), device, first, learning(family))
    if trained:
        _train(compared, trained, family, range(family.steps - 1), device, group=groups[first])
        save(trained, folder, groups[first])
    dist.barrier()
    other = LAYOUTS[loading].build(family.build(), device, second, learning(family))
    if other:
        load(other, folder, groups[second])
        compared.weights(family.steps - 2, named_weights(other.model))
        compared.momenta(family.steps - 2, _momenta(other))
        _train(compared, other, family, range(family.steps - 1, family.steps), device, group=groups[second])
    if trained or other:
        compared.tell(check)


def _train(
    compared: Comparison,
    trained: Trained,
    family: Family,
    steps: range,
    device: torch.device,
    reduce: Callable[[], None] = lambda: None,
    group: Any = None,
) -> None:
    """Train for the steps. ``group`` has the ranks that train, where they are not all."""
    for step in steps:
        inputs, targets = placed(family.batches()[step], device, torch.float32)
        with _watched(compared, trained.model, step):
            loss = trained.backward(inputs, targets)
        reduce()
        compared.gradients(step, named_gradients(trained.model))
        trained.optimizer.step()
        compared.weights(step, named_weights(trained.model))
        _compare_loss(compared, step, loss, trained.part[1], device, group)


@contextlib.contextmanager
def _watched(compared: Comparison, model: nn.Module, step: int) -> Iterator[None]:
    """Compare the weights that FSDP2 gathers for a forward pass, while they are whole."""

    def look(prefix: str, module: nn.Module) -> None:
        whole = {name: value for name, value in module.named_parameters() if not hasattr(value, "full_tensor")}
        compared.used(step, own_names({f"{prefix}{name}": value for name, value in whole.items()}))

    if "torch._dynamo" in sys.modules:
        # A compiler would trace the comparison with the engine's hooks.
        look = torch.compiler.disable(look)  # type: ignore[no-untyped-call]
    # A hook before those of the engine, which frees the weights after the module's forward pass.
    hooks = [
        module.register_forward_hook(
            lambda module, given, result, prefix=f"{name}." if name else "": look(prefix, module), prepend=True
        )
        for name, module in model.named_modules()
        if hasattr(module, "unshard")
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _momenta(trained: Trained) -> dict[str, torch.Tensor]:
    """Return the momenta by the parameters' names."""
    state = trained.optimizer.state
    named = {name: state[value].get("momentum_buffer") for name, value in trained.model.named_parameters()}
    return own_names({name: value for name, value in named.items() if value is not None})


def _compare_loss(
    compared: Comparison, step: int, loss: float | None, parts: int, device: torch.device, group: Any = None
) -> None:
    """Compare the mean of the losses that ranks have, each part of the batch on as many ranks as every other."""
    sums = torch.tensor([0.0, 0.0] if loss is None else [loss, 1.0], device=device)
    dist.all_reduce(sums, group=group)
    total, holders = sums.tolist()
    compared.holders(step, int(holders), parts)
    compared.loss(step, total / max(holders, 1.0))


# --- engines that take any model ------------------------------------------------------------------------------------


def replicated(model: nn.Module) -> nn.Module:
    """Return the model under DistributedDataParallel with small buckets."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=_BUCKET)


def sharded(model: nn.Module) -> nn.Module:
    """Return the model under FSDP2, which keeps a part of every parameter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device
    return fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))


ENGINES = {"ddp": replicated, "fsdp2": sharded}


# --- other ways to use an engine -------------------------------------------------------------------------------------


def static(model: nn.Module) -> nn.Module:
    """Return the model under DistributedDataParallel with a static graph and gradients that are views of buckets."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=_BUCKET, static_graph=True, gradient_as_bucket_view=True)


def kept(model: nn.Module) -> nn.Module:
    """Return the model under FSDP2 that gathers in the forward pass only, with a part of its parameters in a group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in model.children():
        if isinstance(part, Linear):  # other children's weights are read without a call of the child
            fully_shard(part, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def check_accumulated(check: Any, engine: str, family: Family, device: torch.device, parts: int = 2) -> None:
    """Check a family whose gradients an engine reduces once for several micro-batches."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = ENGINES[engine](family.initial().to(device))
    optimizer, compared = family.optimizer(model), Comparison(family, rank=rank, kind=f"{engine} accumulated: ")
    for step in range(family.steps):
        inputs, targets = (each.chunk(ranks)[rank] for each in placed(family.batches()[step], device, torch.float32))
        optimizer.zero_grad()
        total = 0.0
        for number, (some, wanted) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            with _reducing(model, number == parts - 1), _watched(compared, model, step):
                loss = family.loss(model(some), wanted) / parts
                loss.backward()
            total += float(loss.detach())
        compared.gradients(step, named_gradients(model))
        optimizer.step()
        compared.weights(step, named_weights(model))
        _compare_loss(compared, step, total, ranks, device)
    compared.tell(check)


@contextlib.contextmanager
def _reducing(model: nn.Module, last: bool) -> Iterator[None]:
    """Let the engine reduce gradients in the last backward pass only."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
        yield
    else:
        with contextlib.nullcontext() if last else model.no_sync():  # type: ignore[operator]
            yield


#: Ways to use an engine, by name: a function that checks one family.
WAYS: dict[str, Callable[[Any, Family, torch.device], None]] = {
    "ddp-accumulated": lambda check, family, device: check_accumulated(check, "ddp", family, device),
    "fsdp2-accumulated": lambda check, family, device: check_accumulated(check, "fsdp2", family, device),
    "ddp-static": lambda check, family, device: check_engine(check, "ddp static", family, static, device),
    "fsdp2-kept": lambda check, family, device: check_engine(check, "fsdp2 kept", family, kept, device),
}
#: Families that these ways train: products, convolutions, a shared table, and a state over time.
WAYS_FAMILIES = ("bent", "images", "bags", "recurrent")


def check_ways(check: Any, device: torch.device) -> None:
    """Check some families under each way to use an engine."""
    for way in WAYS.values():
        for name in WAYS_FAMILIES:
            way(check, families()[name], device)


def check_families(check: Any, engine: str, device: torch.device) -> None:
    """Check every family under an engine."""
    for family in families().values():
        check_engine(check, engine, family, ENGINES[engine], device)


def check_experts(check: Any, device: torch.device) -> None:
    """Check the family ``routed`` with its experts on ranks."""
    family = families()["routed"]
    model = ParallelExperts(family.initial()).to(device)
    parts = (dist.get_rank(), dist.get_world_size())
    trained = Trained(model, family.optimizer(model), parts, learning=learning(family))
    compared = Comparison(family, rank=dist.get_rank(), kind="ep: ")
    _train(compared, trained, family, range(family.steps), device, model.reduce)
    compared.tell(check)

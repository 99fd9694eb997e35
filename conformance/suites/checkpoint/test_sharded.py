"""Distributed checkpoint cases: saved by N ranks, loaded by as many, fewer or more."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import CHECKPOINT, COMM, COMM_AVERAGE, COMM_DTYPE, COMM_ROOTED
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.runtime.engines import ENGINES
from conformance.suites.runtime.training import batch, loss_of, model, part, reference, weights

#: Modules that take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.optim", "torch.distributed.checkpoint.state_dict")
NEEDS = (CHECKPOINT, COMM, COMM_ROOTED, COMM_DTYPE.on("float32"), COMM_DTYPE.on("uint8"), COMM_DTYPE.on("int64"))
WAYS = ("1-2", "2-1", "2-4", "4-2", "1-4", "4-1")
#: Row counts that 2 and 4 ranks do not divide, and one that is smaller than 4 ranks.
SHAPES = {"matrix": (13, 5), "vector": (7,), "short": (2, 3)}


def whole(name, salt=0):
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name) + salt))


def sharded(device, ranks, salt=0):
    """Return every tensor sharded by rows over the first ``ranks`` ranks; an empty dictionary on the other ranks."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = DeviceMesh(device.type, list(range(ranks)))
    if dist.get_rank() >= ranks:
        return {}
    return {name: distribute_tensor(whole(name, salt).to(device), mesh, [Shard(0)]) for name in SHAPES}


@case("checkpoint.reshard", requires=NEEDS, axes={"ranks": WAYS}, world_size=4)
def test_reshard(check, device, ranks, rank, world_size, group, shared_dir):
    """A checkpoint saved by N ranks and loaded by M ranks restores every tensor."""
    import torch.distributed.checkpoint as dcp

    before, after = (int(count) for count in ranks.split("-"))
    # new_group() is a collective: all ranks make both groups, in the same order.
    groups = {count: dist.new_group(list(range(count))) for count in dict.fromkeys((before, after))}
    saved, loaded = sharded(device, before), sharded(device, after, salt=1000)

    if rank < before:
        dcp.save(saved, checkpoint_id=shared_dir, process_group=groups[before])
    dist.barrier()
    if rank < after:
        dcp.load(loaded, checkpoint_id=shared_dir, process_group=groups[after])

    check.that(True, "took part")  # a rank above ``after`` compares nothing else
    for name, tensor in loaded.items():
        rows = whole(name).tensor_split(rank_rows(SHAPES[name][0], after))
        check.equal(tensor.to_local().cpu(), rows[rank], f"rows of '{name}' on rank {rank} of {after}")


def rank_rows(length, ranks):
    """Return the rows at which shards begin, but for the first: ceil(length / ranks) rows a shard."""
    step = -(-length // ranks)
    return [min(step * rank, length) for rank in range(1, ranks)]


@case("checkpoint.async", requires=NEEDS, world_size=2)
def test_async(check, device, rank, group, shared_dir):
    """An asynchronous save stores the values at the time of the call, although the tensors change meanwhile."""
    import torch.distributed.checkpoint as dcp

    saved = sharded(device, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saving = dcp.async_save(saved, checkpoint_id=shared_dir)
        for tensor in saved.values():
            tensor.to_local().fill_(-1.0)
        saving.result()
    loaded = sharded(device, 2, salt=1000)
    dcp.load(loaded, checkpoint_id=shared_dir)

    for name, tensor in loaded.items():
        rows = whole(name).tensor_split(rank_rows(SHAPES[name][0], 2))
        check.equal(tensor.to_local().cpu(), rows[rank], f"rows of '{name}'")


def step_of(trained, optimizer, step, rank, world_size, device):
    optimizer.zero_grad()
    loss_of(trained, *(part(tensor, rank, world_size).to(device) for tensor in batch(step))).backward()
    optimizer.step()


@case("checkpoint.training", requires=[*NEEDS, COMM_AVERAGE], world_size=2)
def test_training(check, device, rank, world_size, group, shared_dir):
    """A sharded training restored from a checkpoint goes on with the same bits as the one that saved it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    build, make_optimizer = ENGINES["fsdp"].build, ENGINES["fsdp"].optimizer
    exact, _ = reference(make_optimizer, steps=4)
    first, stepping = build(model(), device, world_size)
    for step in range(2):
        step_of(first, stepping, step, rank, world_size, device)
    dcp.save(dict(zip(("model", "optimizer"), get_state_dict(first, stepping), strict=True)), checkpoint_id=shared_dir)
    second, restarted = build(model(seed=5), device, world_size)
    state = dict(zip(("model", "optimizer"), get_state_dict(second, restarted), strict=True))
    dcp.load(state, checkpoint_id=shared_dir)
    set_state_dict(second, restarted, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    for step in (2, 3):
        step_of(first, stepping, step, rank, world_size, device)
        step_of(second, restarted, step, rank, world_size, device)

    expected = weights(first)
    for name, value in weights(second).items():
        check.agree(value, expected[name], f"'{name}' after two more steps")
    for name, value in exact.named_parameters():
        near(check, f"'{name}'", expected[name], value, Near.TRAJECTORY)

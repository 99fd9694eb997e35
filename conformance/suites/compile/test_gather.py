"""Sharded parameter cases: gather in the requested dtype, release, persistence and offload."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE
from conformance.kernels.sharded import ShardedParameters
from conformance.plan.case import case

from .sharding import SHAPES, whole

WORLDS = (2, 3)
DTYPES = ("float32", "bfloat16", "float16")
NEEDS = (COMM, COMM_DTYPE.on("float32"))


def filled(device, names=SHAPES):
    parameters = ShardedParameters()
    for name in names:
        parameters.add(name, whole(name).to(device))
    return parameters


def check_gathered(check, parameters, name, dtype, expected, path):
    """Gather a parameter, check that it equals the whole one cast to ``dtype`` bit for bit, and return it."""
    found = parameters.gather(name, dtype)

    check.equal(found.dtype, dtype, f"the dtype of '{name}', {path}")
    check.equal(found.cpu(), expected.to(dtype), f"'{name}' in {dtype}, {path}")
    return found


@case("compile.gather", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES}, world_size=WORLDS)
def test_gather(check, device, dtype, world_size, group):
    """A gather that casts before it sends gives the bits of gather-then-cast, and sends nothing when repeated."""
    parameters, wanted = filled(device), getattr(torch, dtype)

    for name in SHAPES:
        check_gathered(check, parameters, name, wanted, whole(name), "fresh")
    sent = parameters.bytes_sent
    for name in SHAPES:
        check_gathered(check, parameters, name, wanted, whole(name), "cached")

    elements = sum(-(-whole(name).numel() // world_size) for name in SHAPES) * (world_size - 1)
    check.equal(sent, elements * wanted.itemsize, "bytes sent for all parameters")
    check.equal(parameters.bytes_sent, sent, "bytes sent after every parameter was gathered twice")
    check.metric("bytes", sent)


@case("compile.gather.again", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES[1:]}, world_size=WORLDS)
def test_again(check, device, dtype, world_size, group):
    """After an update, a gather gives the new values in the newly requested dtype, also for persistent parameters."""
    narrow, wide = getattr(torch, dtype), torch.float32
    parameters = ShardedParameters()
    shards = [parameters.add(name, whole(name).to(device), persistent=name == "even") for name in SHAPES]
    for name in SHAPES:
        check_gathered(check, parameters, name, wide, whole(name), "before")

    for own in shards:
        own.mul_(2)
    parameters.invalidate()

    for name in SHAPES:
        check_gathered(check, parameters, name, narrow, whole(name) * 2, "narrow after wide")
        check_gathered(check, parameters, name, wide, whole(name) * 2, "wide after narrow")


@case("compile.gather.prefetch", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES[1:2]}, world_size=WORLDS)
def test_prefetch(check, device, dtype, world_size, group):
    """A fused prefetch takes one collective for each dtype, and the next gathers take none."""
    narrow, parameters = getattr(torch, dtype), filled(device)
    wanted = {"odd": narrow, "matrix": narrow, "even": torch.float32, "none": narrow}

    parameters.prefetch(wanted)
    parameters.prefetch(wanted)  # everything is there already, so this one may send nothing

    check.equal(parameters.collectives, 2, "collectives for two dtypes")
    for name, requested in wanted.items():
        check_gathered(check, parameters, name, requested, whole(name), "prefetched")
    check.equal(parameters.collectives, 2, "collectives after the gathers")


@case("compile.release", requires=NEEDS, world_size=2)
def test_release(check, device, group):
    """A gathered parameter keeps its memory until its last user releases it, and the next gather restores it."""
    parameters = filled(device)
    first = parameters.gather("matrix")

    for left in (2, 1):
        parameters.release("matrix", users=3)
        check.equal(first.cpu(), whole("matrix"), f"the values with {left} users left")
    parameters.release("matrix", users=3)

    check.equal(first.untyped_storage().nbytes(), 0, "bytes of the gathered parameter after its last release")
    check_gathered(check, parameters, "matrix", torch.float32, whole("matrix"), "again")


@case("compile.persistent", requires=NEEDS, world_size=2)
def test_persistent(check, device, group):
    """A persistent parameter keeps its address, needs no second collective, and follows updates."""
    parameters = ShardedParameters()
    own = parameters.add("even", whole("even").to(device), persistent=True)
    kept, collectives = parameters.gather("even"), parameters.collectives
    address = kept.data_ptr()

    parameters.release("even")
    again = parameters.gather("even")
    own.add_(1)
    parameters.invalidate()
    updated = parameters.gather("even")

    check.equal((again.data_ptr(), updated.data_ptr()), (address, address), "addresses after release and after update")
    check.equal(parameters.collectives, collectives + 1, "collectives, with one after the update")
    check.equal(updated.cpu(), whole("even") + 1, "the updated values")


@case("compile.offload", requires=NEEDS, world_size=2)
def test_offload(accelerator, check, device, rank, world_size, group):
    """An offloaded shard frees its device memory and comes back from the host bit for bit."""
    parameters = ShardedParameters()
    own = parameters.add("matrix", whole("matrix").to(device))
    before = own.cpu().clone()

    parameters.offload("matrix")
    device_bytes = own.untyped_storage().nbytes()
    total = (torch.ones(65, 65, device=device) @ torch.ones(65, 65, device=device)).sum()
    parameters.reload("matrix")
    accelerator.synchronize()

    check.equal(device_bytes, 0, "bytes of the offloaded shard on the device")
    check.equal(own.cpu(), before, "the reloaded shard")
    check.equal(total.item(), 65.0**3, "the sum computed on the device during the offload")
    parameters.offload("matrix")
    check_gathered(check, parameters, "matrix", torch.float32, whole("matrix"), "from host memory")

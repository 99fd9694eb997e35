"""Parameters of which each rank has a shard: gathered in the dtype they are used in, released, kept, offloaded."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE
from conformance.case import case
from conformance.kernels.sharded import ShardedParameters

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
    """The dtype that was asked for, with the bits of gathering first and casting then."""
    found = parameters.gather(name, dtype)

    check.equal(found.dtype, dtype, f"the dtype of '{name}', {path}")
    check.equal(found.cpu(), expected.to(dtype), f"'{name}' in {dtype}, {path}")
    return found


@case("compile.gather", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES}, world_size=WORLDS)
def test_gather(check, device, dtype, world_size, group):
    """A gather with the cast before the wire has the bits of gather-then-cast: fresh, cached, and after an update."""
    parameters, wanted = filled(device), getattr(torch, dtype)

    for name in SHAPES:
        check_gathered(check, parameters, name, wanted, whole(name), "fresh")
    sent = parameters.bytes_sent
    for name in SHAPES:
        check_gathered(check, parameters, name, wanted, whole(name), "cached")

    elements = sum(-(-whole(name).numel() // world_size) for name in SHAPES) * (world_size - 1)
    check.equal(sent, elements * wanted.itemsize, "bytes for all of them")
    check.equal(parameters.bytes_sent, sent, "bytes after a second look")
    check.metric("bytes", sent)


@case("compile.gather.again", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES[1:]}, world_size=WORLDS)
def test_again(check, device, dtype, world_size, group):
    """After an update a gather gives the new values in the dtype that is asked for now, kept parameters as well."""
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
    """A fused prefetch is one collective for each dtype on the wire, and what the next gather finds."""
    narrow, parameters = getattr(torch, dtype), filled(device)
    wanted = {"odd": narrow, "matrix": narrow, "even": torch.float32, "none": narrow}

    parameters.prefetch(wanted)
    parameters.prefetch(wanted)

    check.equal(parameters.collectives, 2, "collectives for two dtypes")
    for name, asked in wanted.items():
        check_gathered(check, parameters, name, asked, whole(name), "prefetched")
    check.equal(parameters.collectives, 2, "collectives after the gathers")


@case("compile.release", requires=NEEDS, world_size=2)
def test_release(check, device, group):
    """Memory stays until the last user has released it, is gone then, and comes back with the next gather."""
    parameters = filled(device)
    first = parameters.gather("matrix")

    for left in (2, 1):
        parameters.release("matrix", users=3)
        check.equal(first.cpu(), whole("matrix"), f"the values with {left} users left")
    parameters.release("matrix", users=3)

    check.equal(first.untyped_storage().nbytes(), 0, "bytes after the last user")
    check_gathered(check, parameters, "matrix", torch.float32, whole("matrix"), "again")


@case("compile.persistent", requires=NEEDS, world_size=2)
def test_persistent(check, device, group):
    """A kept parameter stays where it is, costs no second collective, and takes part in updates."""
    parameters = ShardedParameters()
    own = parameters.add("even", whole("even").to(device), persistent=True)
    kept, collectives = parameters.gather("even"), parameters.collectives
    address = kept.data_ptr()

    parameters.release("even")
    again = parameters.gather("even")
    own.add_(1)
    parameters.invalidate()
    updated = parameters.gather("even")

    check.equal((again.data_ptr(), updated.data_ptr()), (address, address), "where it is")
    check.equal(parameters.collectives, collectives + 1, "collectives, one of them after the update")
    check.equal(updated.cpu(), whole("even") + 1, "the updated values")


@case("compile.offload", requires=NEEDS, world_size=2)
def test_offload(accelerator, check, device, rank, world_size, group):
    """A shard goes to host memory and comes back bit for bit; nothing of it stays on the device meanwhile."""
    parameters = ShardedParameters()
    own = parameters.add("matrix", whole("matrix").to(device))
    before = own.cpu().clone()

    parameters.offload("matrix")
    there = own.untyped_storage().nbytes()
    busy = (torch.ones(65, 65, device=device) @ torch.ones(65, 65, device=device)).sum()
    parameters.reload("matrix")
    accelerator.synchronize()

    check.equal(there, 0, "bytes on the device while it is away")
    check.equal(own.cpu(), before, "the shard that has come back")
    check.equal(busy.item(), 65.0**3, "work on the device meanwhile")
    parameters.offload("matrix")
    check_gathered(check, parameters, "matrix", torch.float32, whole("matrix"), "from host memory")

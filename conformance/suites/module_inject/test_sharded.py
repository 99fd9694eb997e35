"""Cases of an injection over ranks: the parts of a block's weights are cut on the device, and give the whole output."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .sharded import BATCH, FAMILIES, HIDDEN, TOKENS, block, cut, stored, whole_output

NEEDS = (COMM, COMM_DTYPE.on("float32"), DTYPE.on("float32"))


def summed(part):
    """Sum the tensor over all ranks in place, and return it."""
    dist.all_reduce(part)
    return part


@case("module_inject.tensor_parallel", axes={"model": tuple(FAMILIES)}, requires=NEEDS, world_size=(2, 4))
def test_tensor_parallel(check, device, model, rank, world_size, group):
    """A block whose fused weights are cut by heads on the device gives the whole block's output on every rank."""
    family = FAMILIES[model]
    x = torch.randn(BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3))
    weights = {name: weight.to(device) for name, weight in stored(family).items()}

    part, pairs, heads = cut(family, weights, rank, world_size)
    output = block(family, part, x.to(device), summed, heads=heads, pairs=pairs)

    check.same_on_all_ranks("the output", output)
    near(check, "the output", output, whole_output(family, x), Near.FORWARD)

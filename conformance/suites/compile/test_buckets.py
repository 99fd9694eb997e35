"""Gradient bucket cases: with every bucket size, a rank gets its shard of the mean gradient."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE
from conformance.kernels.sharded import GradientBuckets
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .sharding import GRADIENTS, NARROW, gradient, mean_gradient, shard

#: Elements of a bucket: one; fewer than some gradients have; as many as one gradient has; enough for all gradients.
SIZES = ("1", "24", "64", "1000")
NEEDS = (COMM, COMM_DTYPE.on("float32"), COMM_DTYPE.on("bfloat16"), DTYPE.on("bfloat16"))


def reduced(device, rank, elements, *, double_buffer):
    """Return the rank's shards by name after each of two updates of two backward passes."""
    buckets = GradientBuckets(elements, double_buffer=double_buffer)
    for name, shape in GRADIENTS.items():
        buckets.add(name, torch.empty(shape, device=device))
    found = []
    for update in (range(2), range(2, 4)):
        for micro in update:
            for name in GRADIENTS:
                given = gradient(name, rank, micro).to(device)
                buckets.reduce(name, given)
                given.fill_(float("nan"))  # the bucket holds a copy; the next layer may reuse this memory
            buckets.end_backward()
        found.append({name: buckets.shard(name).cpu().clone() for name in GRADIENTS})
        buckets.clear()
    return found


@case("compile.buckets", requires=NEEDS, axes={"elements": SIZES}, world_size=(2, 3))
def test_buckets(check, device, elements, rank, world_size, group):
    """Every shard accumulated over backward passes is that of the mean, and double buffering changes no bit."""
    single, double = (reduced(device, rank, int(elements), double_buffer=flag) for flag in (False, True))

    for number, update in enumerate((range(2), range(2, 4))):
        for name in GRADIENTS:
            exact = shard(mean_gradient(name, world_size, update), rank, world_size)
            kind = torch.bfloat16 if name in NARROW else torch.float32
            near(check, f"'{name}' of update {number}", single[number][name], exact, Near.SUMS, kind,
                 float(mean_gradient(name, world_size, update).abs().max()))  # fmt: skip
            check.agree(double[number][name], single[number][name], f"'{name}' of update {number}, double-buffered")


@case("compile.buckets.sizes", requires=NEEDS, world_size=2)
def test_sizes(check, device, rank, group):
    """On two ranks, every bucket size gives the same bits as one collective for each tensor."""
    # A sum of two values has only one order, so no rounding can differ.
    alone = reduced(device, rank, 1, double_buffer=False)
    check.that(all(any(part.any() for part in found.values()) for found in alone), "the mean gradients are 0")

    for elements in (5, 24, 64, 1000):
        together = reduced(device, rank, elements, double_buffer=True)
        for number in range(2):
            for name in GRADIENTS:
                check.agree(together[number][name], alone[number][name], f"'{name}' in buckets of {elements}")


@case("compile.buckets.overflow", requires=[COMM, COMM_DTYPE.on("float16"), DTYPE.on("float16")], world_size=(2, 3))
def test_overflow(check, device, world_size, group):
    """A float16 mean is finite where the sum would overflow: gradients are divided before they are added."""
    buckets = GradientBuckets(16)
    buckets.add("large", torch.empty(6, device=device))

    buckets.reduce("large", torch.full((6,), 49152.0, dtype=torch.float16, device=device))
    buckets.end_backward()

    found = buckets.shard("large").cpu()
    near(check, "the mean", found, torch.full_like(found, 49152.0, dtype=torch.float64), Near.SUMS, torch.float16)

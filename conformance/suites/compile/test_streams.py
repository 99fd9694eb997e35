"""Gradient bucket cases over three streams: one computes, one copies into buckets, and one reduces them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, EVENT, STREAM_ORDER
from conformance.plan.case import case
from conformance.suites.accelerator.conveyor import HOST, Conveyor, numbers

#: Gradients, and the buckets that they take in turn: each bucket is filled again while the other one is reduced.
GRADIENTS, BUCKETS = 6, 2
MILLISECONDS = 4.0


def gradient(number, rank):
    """Return a rank's gradient. The sums stay integers below 256, which are exact in any matrix unit."""
    return numbers(HOST, number) if rank == 0 else torch.full_like(numbers(HOST), float(number))


@case(
    "compile.buckets.streams",
    requires=[COMM, COMM_DTYPE.on("float32"), STREAM_ORDER, EVENT],
    axes={"late": ("compute", "copy", "reduce")},
    world_size=2,
)
def test_streams(check, accelerator, device, late, rank, world_size, group):
    """Events that are recorded again order three streams: no bucket is reduced early or filled while it is reduced."""
    conveyor = Conveyor(accelerator, device, MILLISECONDS)
    sources = [gradient(number, rank).to(device) for number in range(GRADIENTS)]
    gradients, buckets = ([torch.full_like(sources[0], -1.0) for _ in range(BUCKETS)] for _ in "gb")
    sums = [torch.full_like(sources[0], -1.0) for _ in range(GRADIENTS)]
    computed, copied, reduced = ([accelerator.Event() for _ in range(BUCKETS)] for _ in range(3))
    compute, copying, reducing = (accelerator.Stream() for _ in range(3))
    accelerator.synchronize()

    def move(stage, source, target):
        """Copy on the current stream; the stage that is late takes milliseconds for it."""
        conveyor.carry(source, target) if stage == late else target.copy_(source)

    for number in range(GRADIENTS):
        place = number % BUCKETS
        again = number >= BUCKETS
        with accelerator.stream(compute):
            if again:
                compute.wait_event(copied[place])
            move("compute", sources[number], gradients[place])
            computed[place].record(compute)
        with accelerator.stream(copying):
            copying.wait_event(computed[place])
            if again:
                copying.wait_event(reduced[place])
            move("copy", gradients[place], buckets[place])
            copied[place].record(copying)
        with accelerator.stream(reducing):
            reducing.wait_event(copied[place])
            dist.all_reduce(buckets[place])
            move("reduce", buckets[place], sums[number])
            reduced[place].record(reducing)
    for event in reduced:
        accelerator.current_stream().wait_event(event)
    found = [total + 0 for total in sums]

    for number, total in enumerate(found):
        expected = sum(gradient(number, other) for other in range(world_size))
        wrong = int((total.cpu() != expected).sum())
        check.that(not wrong, f"{wrong} elements of the sum of gradient {number} are wrong with a late {late} stream")

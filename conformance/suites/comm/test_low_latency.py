"""Cases for the low-latency all-reduce of host copies: the sum of device tensors, with one rounding."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE
from conformance.plan.case import case

from .low_latency import LowLatency
from .payloads import check_reduced, payloads

#: One element, a few, and more than the buffer of one chunk of 1 MiB.
SIZES = (1, 13, (1 << 18) + 3)


@case("comm.low_latency", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": ("float32", "float16", "bfloat16")},
      world_size=(2, 3))  # fmt: skip
def test_low_latency(accelerator, case, check, device, dtype, rank, world_size, group):
    """The low-latency sum of device tensors is rounded once, has the same bits on all ranks, and fits the backend's."""
    kind = getattr(torch, dtype)
    fast = LowLatency(accelerator, rank, world_size)
    try:
        for size in SIZES:
            inputs = payloads(case, world_size, size, kind)
            there = inputs[rank].to(device, copy=True)

            host = there.to("cpu", copy=True)
            fast.sum(host)
            dist.all_reduce(there)

            check.same_on_all_ranks(f"the sum of {size}", host)
            # Sums of a few 16-bit numbers are exact in float32, so there is one rounding.
            once = inputs.double().sum(0).to(kind)
            error = (host.double() - once.double()).abs().max().item()
            least = torch.finfo(torch.float32).eps * float(inputs.double().abs().sum(0).max())
            check.that(error <= least, f"the sum of {size} is off by {error} from the sum that is rounded once")
            check_reduced(check, there, inputs, "sum")
        fast.report(check)
    finally:
        fast.close()

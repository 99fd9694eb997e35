"""Low-latency all-reduce of the accelerator's builder, as DeepSpeed's CPU communication finds it, or ours."""

from __future__ import annotations

import torch

from conformance.judging.finding import Refused
from conformance.kernels.low_latency import LowLatencyAllReduce
from conformance.suites.ops.loading import functions

#: Builders that DeepSpeed's communication asks for, in its order.
BUILDERS = ("CCLCommBuilder", "ShareMemCommBuilder")


class LowLatency:
    """In-place sum of host tensors over the ranks of one host."""

    def __init__(self, accelerator, rank, world_size):
        self._own, self._vendor = None, None
        for name in BUILDERS:
            try:
                loaded = functions(accelerator, name)
            except Refused as refusal:
                self.why = str(refusal)
                continue
            if name == "ShareMemCommBuilder":
                loaded.initialize(world_size, rank)
                self._vendor, self.why = torch.ops.deepspeed.inference_all_reduce_, name
                return
            self.why = f"{name} needs a key-value store of its own, which the suite does not start"
        self._own = LowLatencyAllReduce()

    def sum(self, tensor):
        """Replace the host tensor by the sum over all ranks."""
        if self._own is not None:
            self._own.all_reduce(tensor)
        else:
            self._vendor(tensor)

    def close(self):
        """Free what the portable implementation holds."""
        if self._own is not None:
            self._own.close()

    def report(self, check):
        """Keep as metrics whose implementation ran, and why."""
        check.metric("implementation", "vendor" if self._own is None else "reference")
        check.metric("implementation_reason", self.why if self._own is None else f"{self.why}; {self._own.why}")

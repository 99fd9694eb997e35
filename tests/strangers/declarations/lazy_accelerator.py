"""Declaration of PyTorch's LazyTensor with its TorchScript backend: what ``torch/csrc/lazy/tutorial.md`` promises."""

from __future__ import annotations

import functools

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, dtypes, lacks, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator


@functools.cache  # a second start raises
def _start() -> None:
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()


class Lazy(TorchAccelerator):
    """Accelerator over ``torch._lazy``, which has neither a list of devices nor streams."""

    def load(self) -> Lazy:
        """Start the TorchScript backend, which registers the device."""
        _start()
        super().load()
        return self

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def synchronize(self, device_index: int | None = None) -> None:
        """Run what was recorded, and wait for it, as the tutorial's loop does."""
        self._index(device_index)
        self._module.mark_step(wait=True)
        self._module.wait_device_ops()


LAZY = Lazy(
    name="lazy",
    vendor="PyTorch",
    module="torch._lazy",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    randomness=HostGenerator(),
    # The tutorial: about a hundred operators are recorded into the graph; others are computed on another device, which
    # here is the host, and their results are moved back.
    capabilities=(TORCH_BASE - {can.RNG_GENERATOR})
    | lacks(can.RNG_GENERATOR, "PyTorch creates generators for accelerators only", NOT_YET)
    | lacks(can.STREAM, "the graph is run as a whole", NOT_YET)
    | lacks(can.EVENT, "the graph is run as a whole", NOT_YET)
    | dtypes("float32", detail=Detail.HOST)
    | strided_only("float32"),
)

"""Declaration of mycelya-torch 0.1.7 with its mock machine, which computes on this host."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, dtypes, lacks, strided_only
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator


class Mycelya(TorchAccelerator):
    """One remote machine with one device."""

    def device_count(self) -> int:
        return 1  # torch.mycelya.device_count() is always 127, however many machines exist

    def current_device(self) -> int:
        return 0

    def set_device(self, device_index: int) -> None:
        self._index(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        """Operations are sent in batches; reading a value runs and awaits all that came before."""
        import torch

        torch.ones(1, device=self.device(device_index)).cpu()


MYCELYA = Mycelya(
    name="mycelya",
    vendor="alyxya",
    package="mycelya_mock",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    # The mock machine draws from this process's generator.
    randomness=HostGenerator(),
    capabilities=(TORCH_BASE - {can.RNG_GENERATOR})
    | lacks(can.RNG_GENERATOR, "operators do not take the device's generator", NOT_YET)
    | lacks(can.STREAM, "streams are placeholders", NOT_YET)
    | lacks(can.EVENT, "events are placeholders", NOT_YET)
    | lacks(can.MEMORY_PINNED, "no pinned memory for remote tensors", NOT_YET)
    | dtypes("float32", "int64")
    | strided_only("float32", "int64"),
)

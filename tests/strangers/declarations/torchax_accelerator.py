"""Declaration of torchax for the run of strangers. Loading it enables torchax for all tensors of device ``jax``."""

from __future__ import annotations

from typing import Any

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator


class Torchax(TorchAccelerator):
    """Accelerator over ``torch.jax``, with what torchax offers outside that module."""

    def load(self) -> Torchax:
        """Enable torchax globally, in the mode that its project offers for accuracy."""
        super().load()
        # In the global mode of release 0.0.4 the import of this module ends in a RecursionError, so it comes first.
        import torch.testing._internal.common_methods_invocations  # noqa: F401
        import torchax

        torchax.enable_accuracy_mode()
        torchax.enable_globally()
        return self

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait for all arrays: ``torch.jax`` has no such function."""
        import jax

        self._index(device_index)
        for array in jax.live_arrays():
            array.block_until_ready()


def _core() -> frozenset[Any]:
    return frozenset(capability for capability in VOCABULARY.values() if capability.core)


TORCHAX = Torchax(
    name="jax",
    vendor="torchax",
    package="torchax",
    streams=False,
    events=False,
    pins=False,
    # torchax draws the keys of its random numbers from the host's generator.
    randomness=HostGenerator(),
    simulated=True,
    capabilities=_core() | dtypes("float32"),
)

"""Declaration of tinygrad's backend for PyTorch, which is in its repository and not in its package."""

from __future__ import annotations

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator


class Tiny(TorchAccelerator):
    """Accelerator over ``torch.tiny``."""

    def load(self) -> Tiny:
        """Import the backend, which registers the device."""
        import extra.torch_backend.backend  # noqa: F401

        super().load()
        return self


TINY = Tiny(
    name="tiny",
    vendor="tinygrad",
    package="extra.torch_backend",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core) | dtypes("float32"),
)

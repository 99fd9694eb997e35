"""Declaration of torchvulkan for the run of strangers: what its README promises."""

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator

VULKAN = TorchAccelerator(
    name="vulkan",
    vendor="torchvulkan",
    package="torchvulkan",
    streams=False,
    events=False,
    pins=False,
    simulated=False,
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core) | dtypes("float32"),
)

"""Declaration of torchvulkan for the run of strangers: what its README promises."""

from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator

VULKAN = TorchAccelerator(
    name="vulkan",
    vendor="torchvulkan",
    package="torchvulkan",
    streams=False,
    events=False,
    pins=False,
    simulated=False,
    capabilities=TORCH_BASE | dtypes("float32"),
)

"""Declaration of torchvulkan for the run of strangers: what its README promises."""

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes
from conformance.accelerators.declaration import Detail
from conformance.accelerators.torch_accelerator import TorchAccelerator

VULKAN = TorchAccelerator(
    name="vulkan",
    vendor="torchvulkan",
    package="torchvulkan",
    streams=False,
    events=False,
    pins=False,
    simulated=False,
    # README: "any operation, dtype, or tensor shape the backend doesn't implement natively runs on the CPU".
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core) | dtypes("float32", detail=Detail.HOST),
)

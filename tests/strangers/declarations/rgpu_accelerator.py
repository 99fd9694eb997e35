"""Declaration of rgpu for the run of strangers: what its README promises."""

from conformance.accelerators.claims import TORCH_BASE, dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator

RGPU = TorchAccelerator(
    name="rgpu",
    vendor="rgpu",
    package="rgpu",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    capabilities=TORCH_BASE | dtypes("float32"),
)

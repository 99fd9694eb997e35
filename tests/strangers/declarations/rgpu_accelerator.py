"""Declaration of rgpu for the run of strangers: what its README promises."""

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator

RGPU = TorchAccelerator(
    name="rgpu",
    vendor="rgpu",
    package="rgpu",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core) | dtypes("float32"),
)

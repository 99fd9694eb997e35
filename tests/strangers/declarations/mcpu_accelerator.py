"""Declaration of torch_mcpu for the run of strangers: what its module offers, built with fallback to the host."""

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import STREAMS, dtypes
from conformance.accelerators.declaration import Detail
from conformance.accelerators.torch_accelerator import TorchAccelerator

MCPU = TorchAccelerator(
    name="mcpu",
    vendor="torch_mcpu",
    package="torch_mcpu",
    simulated=True,
    synchronized=False,
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core)
    | STREAMS
    | dtypes("float32", detail=Detail.HOST),
)

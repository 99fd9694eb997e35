"""Declaration of torch-tvarant 0.1.0 on its CPU simulator: inference in float32, as docs/operations.md promises.

The package lacks its headers, which its repository has. The judged build has six repairs of what its author would see
first, such as ``float + 2`` and copies of lazy conjugates.
"""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, emulates, lacks, stores, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

TVARANT = TorchAccelerator(
    name="tvarant",
    vendor="Tvarant",
    package="torch_tvarant",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    randomness=HostGenerator(),
    # docs/operations.md: float32 operators run on the device, all others by the CPU fallback.
    capabilities=(TORCH_BASE - {can.RNG_GENERATOR})
    | stores("float32", "int32", "int64", "bool")
    | emulates(
        Cell("operators.*", "float32", "inference"), Cell("workloads.*", "float32", "inference"), detail=Detail.HOST
    )
    | {can.PROFILER}
    | strided_only("float32")
    | lacks(can.RNG_GENERATOR, "draws come from the host", NOT_YET)
    | lacks(can.STREAM, "one queue", NOT_YET)
    | lacks(can.EVENT, "one queue", NOT_YET),
)

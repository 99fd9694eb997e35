"""Declaration of torch_heron, as its vendor writes it. See heron_accelerator.toml for exceptions of operators."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, dtypes, lacks, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.torch_accelerator import TorchAccelerator

NOT_YET = Detail.NOT_YET
# Not TORCH_BASE: without a generator object of its own, rng.generator is missing.
_BASE: Capabilities = frozenset({can.DEVICE, can.MEMORY, can.COPY, can.RNG, can.CHECKPOINT, can.SYNCHRONIZE}) | {
    can.DEVICE_INDEX,
    can.RNG_STATE,
    can.RANGES,
    can.LAZY_CALL,
    can.TENSOR_TYPES,
    can.OP_BUILDERS,
}

HERON = TorchAccelerator(
    name="heron",
    vendor="Strangers",
    package="torch_heron",
    streams=False,
    events=False,
    pins=False,
    synchronized=True,
    host_timers=True,
    ordered=True,
    backpressure=True,
    simulated=True,
    capabilities=_BASE
    | {can.MEMORY_STATS, can.MEMORY_PEAK, can.MEMORY_TOTAL, can.DENORMALS, can.MATMUL_FULL}
    | lacks(can.RNG_GENERATOR, "a Python backend cannot create torch.Generator(device='heron')", NOT_YET)
    | lacks(can.STREAM, "everything is synchronous", NOT_YET)
    | lacks(can.EVENT, "everything is synchronous", NOT_YET)
    | lacks(can.TRITON, "no compiler", NOT_YET)
    # Every number is computed by the host, and the declaration says so.
    | dtypes("float32", "float64", "bfloat16", "int32", "int64", "bool", detail=Detail.HOST)
    | strided_only("float32", "float64", "bfloat16", "int32", "int64", "bool"),
)

"""The simulated accelerator: the features that a CPU lacks, on any machine with a C++ compiler."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    ALLOCATOR,
    NOT_YET,
    PINNING,
    STREAMS,
    TORCH_BASE,
    accumulates_wide,
    communicates,
    depends,
    dtypes,
    invariant,
    lacks,
    stores,
    strided_only,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "bool")
SIM = TorchAccelerator(
    name="sim",
    vendor="accelerator-conformance",
    package="conformance.accelerators.simulated.torch_sim",
    builds="conformance.accelerators.simulated.build:build",
    collectives={"linux": "simccl"},
    visible_devices="SIM_VISIBLE_DEVICES",
    exports=("SIM",),
    graph="SIMGraph",
    simulated=True,
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | STREAMS
    | ALLOCATOR
    | PINNING
    | {
        can.DEVICE_MULTIPLE,
        can.DEVICE_VISIBILITY,
        can.RNG_PER_DEVICE,
        can.GRAPH_CAPTURE,
        can.GRAPH_POOL,
        can.TORCH_ACCELERATOR,
        can.TORCH_ACCELERATOR_DTYPES,
        can.TORCH_ACCELERATOR_GRAPH,
        can.MATMUL_FULL,
        can.DENORMALS,
        can.DETERMINISTIC,
        can.AUTOCAST,
        can.COMPILE,
        can.PROFILER,
        can.DLPACK,
    }
    | communicates("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    | ALL_COLLECTIVES
    | {can.COMM_BITWISE, can.COMM_DEATH, can.COMM_TAGS}
    | lacks(can.COMM_COALESCED, "gloo starts every collective separately", NOT_YET)
    | lacks(can.COMM_SYMMETRIC, "gloo has no memory that other ranks read", NOT_YET)
    | accumulates_wide("float16", "bfloat16")
    | invariant(can.INVARIANT_RUN, "float32", "bfloat16")
    | invariant(can.INVARIANT_COMPILE, "float32", "bfloat16")
    | invariant(can.INVARIANT_STREAM, "float32", "bfloat16")
    | invariant(can.INVARIANT_GRAPH, "float32", "bfloat16")
    | depends(can.INVARIANT_RANK, "float32", "bfloat16", reason="each rank rounds its part, and gloo adds the parts")
    | dtypes(*_DTYPES, *_INTEGERS)
    | stores("float8_e4m3fn", "float8_e5m2")
    | strided_only(*_DTYPES, *_INTEGERS)
    | lacks(can.TRITON, "Triton has no code generator for a simulated device", NOT_YET),
)

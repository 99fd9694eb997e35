"""GPUs of NVIDIA, and of AMD where torch is built for ROCm."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    ALLOCATOR,
    PINNING,
    STREAMS,
    TORCH_BASE,
    accumulates_wide,
    communicates,
    dtypes,
    lacks,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

CUDA = TorchAccelerator(
    name="cuda",
    vendor="NVIDIA or AMD",
    collectives={"linux": "nccl", "win32": "gloo"},
    visible_devices="CUDA_VISIBLE_DEVICES",
    exports=("NCCL",),
    listing=("nvidia-smi", "--list-gpus"),
    graph="CUDAGraph",
    triton=True,
    # float16 arithmetic from Volta on, bfloat16 and Triton from Ampere on.
    needs_generation={"float16": (7, 0), "bfloat16": (8, 0), "triton": (8, 0)},
    # torch._grouped_mm is a single kernel from Hopper on. On older devices it is a loop over groups.
    triton_grouped_mm=((7, 0), (9, 0)),
    host_registration=("cudart", "cudaHostRegister", "cudaHostUnregister"),
    range_tool="nvtx",
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
        can.MATMUL_FULL,
        can.DENORMALS,
        can.DETERMINISTIC,
        can.AUTOCAST,
        can.COMPILE,
        can.TRITON,
        can.PROFILER,
    }
    | communicates("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    | ALL_COLLECTIVES
    | {can.COMM_COALESCED}
    | lacks(can.COMM_BITWISE, "NCCL has no bitwise reductions")
    | accumulates_wide("float16", "bfloat16")
    | dtypes("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
    | dtypes("int8", "int16", "int32", "int64", "uint8", "bool"),
)

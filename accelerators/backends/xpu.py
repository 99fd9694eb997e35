"""Intel GPUs, through torch.xpu of a stock torch."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    ALLOCATOR,
    NOT_YET,
    PINNING,
    STREAMS,
    TORCH_BASE,
    communicates,
    dtypes,
    lacks,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

XPU = TorchAccelerator(
    name="xpu",
    vendor="Intel",
    collectives={"linux": "xccl"},
    visible_devices="ZE_AFFINITY_MASK",
    # Level Zero, oneCCL and SYCL read these.
    exports=("ZE_", "CCL", "ONEAPI", "SYCL"),
    listing=("clinfo", "--list"),
    graph="XPUGraph",
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | {can.TORCH_ACCELERATOR}
    | STREAMS
    | ALLOCATOR
    | PINNING
    | {
        can.DEVICE_MULTIPLE,
        can.RNG_PER_DEVICE,
        can.AUTOCAST,
        can.COMPILE,
        can.PROFILER,
    }
    | communicates("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    # torch's table of backends lists these for xccl. It averages with oneCCL from 2021.15 on.
    | ALL_COLLECTIVES
    | lacks(can.COMM_BITWISE, "oneCCL reduces by sum, product, minimum, maximum and average only", NOT_YET)
    | dtypes("float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool")
    | lacks(can.TRITON, "needs Intel's own build of Triton, which a stock installation lacks", NOT_YET),
)

"""Huawei Ascend, through torch_npu."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALLOCATOR,
    NOT_YET,
    STREAMS,
    TORCH_BASE,
    communicates,
    dtypes,
    emulates,
    lacks,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

NPU = TorchAccelerator(
    name="npu",
    vendor="Huawei",
    package="torch_npu",
    collectives={"linux": "hccl"},
    visible_devices="ASCEND_RT_VISIBLE_DEVICES",
    exports=("ASCEND", "HCCL", "LD_LIBRARY", "PATH"),
    listing=("npu-smi", "info", "-l"),
    graph="NPUGraph",
    # The runtime registers host memory in whole pages.
    pin_alignment=4096,
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | {can.TORCH_ACCELERATOR}
    | STREAMS
    | ALLOCATOR
    | {can.MEMORY_PINNED, can.DEVICE_MULTIPLE, can.RNG_PER_DEVICE, can.GRAPH_CAPTURE, can.AUTOCAST}
    | communicates("float32", "float16", "bfloat16", "int8", "int32", "int64")
    # torch_npu sums and then divides, because its communication library has no average.
    | emulates(can.COMM_AVERAGE)
    | {can.COMM_ROOTED, can.COMM_ALL_TO_ALL, can.COMM_P2P}
    | lacks(can.COMM_BITWISE, "torch_npu refuses bitwise reductions", NOT_YET)
    | dtypes("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool")
    | lacks(can.TRITON, "stock Triton has no code generator for Ascend", NOT_YET),
)

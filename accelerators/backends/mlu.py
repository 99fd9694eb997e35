"""Cambricon, through torch_mlu."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALLOCATOR,
    NOT_YET,
    PINNING,
    STREAMS,
    TORCH_BASE,
    communicates,
    dtypes,
    emulates,
    lacks,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

MLU = TorchAccelerator(
    name="mlu",
    vendor="Cambricon",
    package="torch_mlu",
    collectives={"linux": "cncl"},
    visible_devices="MLU_VISIBLE_DEVICES",
    exports=("NEUWARE_HOME", "CNCL", "LD_LIBRARY", "PATH"),
    listing=("cnmon", "info"),
    graph="MLUGraph",
    triton=True,
    range_tool="cnpx",
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | {can.TORCH_ACCELERATOR}
    | STREAMS
    | ALLOCATOR
    | PINNING
    | {can.DEVICE_MULTIPLE, can.RNG_PER_DEVICE, can.GRAPH_CAPTURE, can.AUTOCAST, can.TRITON}
    | communicates("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    # torch_mlu divides before or after a sum, because its communication library has no average.
    | emulates(can.COMM_AVERAGE)
    | {can.COMM_ROOTED, can.COMM_ALL_TO_ALL, can.COMM_P2P}
    | lacks(can.COMM_BITWISE, "CNCL reduces by sum, product, minimum and maximum only", NOT_YET)
    | dtypes("float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"),
)

"""Kunlunxin XPU, through torch_xmlir, which presents the device as torch.cuda."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, communicates, dtypes, lacks
from conformance.accelerators.torch_accelerator import TorchAccelerator

KLXPU = TorchAccelerator(
    name="klxpu",
    vendor="Kunlunxin",
    package="torch_xmlir",
    module="torch.cuda",
    device_type="cuda",
    impersonates=frozenset({"cuda"}),
    # Both this device and a GPU answer through torch.cuda. Only the driver's device node distinguishes them.
    device_files=("/dev/xpuctrl",),
    collectives={"linux": "nccl"},
    visible_devices="CUDA_VISIBLE_DEVICES",
    # BKCL is its communication library, XMLIR its compiler.
    exports=("BKCL", "XPU", "XMLIR", "LD_LIBRARY", "PATH"),
    listing=("xpu-smi", "-L"),
    graph="CUDAGraph",
    synchronized=False,
    # Its event timers return 0.0 unless XPU_EVENT_KL3_ENABLE=1 is set.
    host_timers=True,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | {can.STREAM, can.STREAM_ORDER, can.EVENT, can.MEMORY_STATS, can.MEMORY_TOTAL}
    | communicates("float32", "float16", "bfloat16", "int32", "int64")
    # BKCL's calls include reduce, all-to-all, send and receive. Nothing public says whether it averages.
    | {can.COMM_ROOTED, can.COMM_ALL_TO_ALL, can.COMM_P2P}
    | dtypes("float32", "float16", "bfloat16", "int32", "int64", "bool")
    | lacks(can.EVENT_TIMING, "event timers return 0.0 in the default configuration", NOT_YET)
    | lacks(can.TRITON, "stock Triton has no code generator for it", NOT_YET),
)

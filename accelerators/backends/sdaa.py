"""Tecorigin, through torch_sdaa."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, STREAMS, TORCH_BASE, communicates, dtypes, lacks
from conformance.accelerators.torch_accelerator import TorchAccelerator

_NO_GRAPH = "torch_sdaa captures no graphs"

SDAA = TorchAccelerator(
    name="sdaa",
    vendor="Tecorigin",
    package="torch_sdaa",
    collectives={"linux": "tccl"},
    visible_devices="SDAA_VISIBLE_DEVICES",
    # TCCL is its communication library. It ignores NCCL's variables.
    exports=("TCCL", "SDAA", "LD_LIBRARY", "PATH"),
    listing=("teco-smi",),
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | STREAMS
    | {can.MEMORY_STATS, can.MEMORY_TOTAL, can.MEMORY_PINNED, can.DEVICE_MULTIPLE, can.AUTOCAST}
    | communicates("float32", "float16", "bfloat16", "int32", "int64")
    # TCCL's calls include an average, all-to-all, send and receive. Nothing public says whether torch_sdaa gathers and
    # scatters.
    | {can.COMM_AVERAGE, can.COMM_ALL_TO_ALL, can.COMM_P2P}
    | dtypes("float32", "float16", "bfloat16", "int32", "int64", "bool")
    | lacks(can.GRAPH_CAPTURE, _NO_GRAPH, NOT_YET)
    | lacks(can.GRAPH_POOL, _NO_GRAPH, NOT_YET)
    | lacks(can.TRITON, "Triton has no code generator for it", NOT_YET),
)

"""Intel Gaudi, through habana_frameworks."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, STREAMS, TORCH_BASE, communicates, dtypes, emulates, lacks
from conformance.accelerators.memory import AllocatorMemory
from conformance.accelerators.torch_accelerator import TorchAccelerator

HPU = TorchAccelerator(
    name="hpu",
    vendor="Intel Gaudi",
    module="habana_frameworks.torch.hpu",
    package="habana_frameworks",
    collectives={"linux": "hccl"},
    # Not CUDA_VISIBLE_DEVICES, which Gaudi's runtime ignores.
    visible_devices="HABANA_VISIBLE_MODULES",
    exports=("HABANA", "PT_HPU", "HCCL"),
    compile_backend="hpu_backend",
    listing=("hl-smi", "-L"),
    synchronized=False,
    host_timers=False,
    ordered=True,
    backpressure=True,
    graph="HPUGraph",
    memory=AllocatorMemory(total_in_stats="Limit"),
    capabilities=TORCH_BASE
    | STREAMS
    | {can.MEMORY_TOTAL, can.MEMORY_PINNED, can.GRAPH_CAPTURE}
    | {can.AUTOCAST, can.COMPILE, can.PROFILER}
    | communicates("float32", "float16", "bfloat16", "int8", "int32", "int64")
    # Gaudi's process group sums and then divides, because its communication library has no average.
    | emulates(can.COMM_AVERAGE)
    | {can.COMM_ROOTED, can.COMM_ALL_TO_ALL, can.COMM_P2P}
    | lacks(can.COMM_BITWISE, "HCCL reduces by sum, minimum and maximum only", NOT_YET)
    | dtypes("float32", "bfloat16", "float16", "int8", "int32", "int64", "bool")
    | lacks(can.GRAPH_POOL, "torch.hpu.graph takes no memory pool", NOT_YET)
    | lacks(can.DEVICE_MULTIPLE, "the runtime gives one device to one process", NOT_YET)
    | lacks(can.TRITON, "Triton has no code generator for Gaudi", NOT_YET),
)

"""Apple's GPUs, through Metal."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import HARDWARE, NOT_YET, TORCH_BASE, dtypes, lacks
from conformance.accelerators.memory import DriverMemory
from conformance.accelerators.randomness import NamedGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

_ONE_QUEUE = "torch.mps has one command queue and no stream objects"
_NO_PEAKS = "torch.mps reports the current allocation only and keeps no peaks"

MPS = TorchAccelerator(
    name="mps",
    vendor="Apple",
    collectives={"darwin": "gloo"},
    # macOS has no such variable, and there is one device.
    visible_devices="MPS_VISIBLE_DEVICES",
    listing=("system_profiler", "SPDisplaysDataType"),
    synchronized=False,
    host_timers=True,
    ordered=True,
    backpressure=False,
    streams=False,
    events=False,
    pins=False,
    memory=DriverMemory("current_allocated_memory", "driver_allocated_memory", "recommended_max_memory"),
    randomness=NamedGenerator("_get_default_mps_generator"),
    capabilities=TORCH_BASE
    | {can.TORCH_ACCELERATOR}
    | {can.AUTOCAST, can.COMPILE}
    | dtypes("float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
    # gloo carries tensors of the host only, so nothing is claimed about collectives of the device's tensors.
    | lacks(can.DTYPE.on("float64"), "Metal has no 64-bit floating-point type", HARDWARE)
    | lacks(can.DEVICE_MULTIPLE, "Metal is presented as one device", HARDWARE)
    | lacks(can.STREAM, _ONE_QUEUE, NOT_YET)
    | lacks(can.STREAM_ORDER, _ONE_QUEUE, NOT_YET)
    | lacks(can.STREAM_RECORD, _ONE_QUEUE, NOT_YET)
    | lacks(can.MEMORY_STATS, _NO_PEAKS, NOT_YET)
    | lacks(can.MEMORY_PEAK, _NO_PEAKS, NOT_YET)
    | lacks(can.GRAPH_CAPTURE, "torch.mps captures no graphs", NOT_YET)
    | lacks(can.TRITON, "Triton has no code generator for Metal", NOT_YET),
)

"""The host's processor, as PyTorch's own CPU backend drives it."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    NOT_YET,
    TORCH_BASE,
    accumulates_wide,
    communicates,
    depends,
    dtypes,
    invariant,
    kernels,
    lacks,
    stores,
)
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

_NO_STREAM = "torch.cpu.Stream is a placeholder: the host has one queue, and work on it is done when the call returns"
_NO_EVENT = "torch.cpu has no events with times; durations are measured with the host's clock"
_NO_COUNTERS = "PyTorch's CPU allocator keeps no counters; the numbers are the resident memory of the process"
_NO_GRAPH = "PyTorch captures no graphs on the CPU"
_ONE_DEVICE = "PyTorch presents all processors of a host as one device"
_HOST = "torch.accelerator is the device beside the host, and never the host"
#: A bug is no missing capability: the claim stands, and accelerators/waivers/cpu.toml names the cases that fail.
_GAPS_LOST = "except tensors with gaps or in another order, which gloo takes for contiguous ones: pytorch #192920"
_KERNEL_BY_ROWS = "oneDNN and MKL choose the kernel of a product by the number of its rows"
_SUM_OF_PARTS = "each rank rounds its part of a product, and gloo adds the parts"
_NO_MODE = "no setting of PyTorch makes the CPU's bits independent of their surroundings"
_KERNEL_BY_STRIDE = "gelu rounds otherwise where rows have gaps between them: such tensors have another kernel"
_NO_PINNING = "no device copies from host memory here, so page-locking has no purpose"

CPU = TorchAccelerator(
    name="cpu",
    vendor="PyTorch",
    is_host=True,
    collectives={"linux": "gloo", "darwin": "gloo", "win32": "gloo"},
    # No runtime reads this variable, because there is one device. Its own name leaves other vendors' devices visible.
    visible_devices="CPU_VISIBLE_DEVICES",
    listing=("lscpu",),
    synchronized=True,
    host_timers=True,
    ordered=True,
    backpressure=True,
    streams=False,
    events=False,
    pins=False,
    memory=ProcessMemory(),
    randomness=HostGenerator(),
    capabilities=TORCH_BASE
    | {
        can.MEMORY_TOTAL,
        can.MATMUL_FULL,
        can.DENORMALS,
        can.DETERMINISTIC,
        can.AUTOCAST,
        can.COMPILE,
        can.PROFILER,
        can.DLPACK,
    }
    | communicates("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", known=_GAPS_LOST)
    | ALL_COLLECTIVES
    # gloo's connections end with the process at their other end.
    | {can.COMM_BITWISE, can.COMM_DEATH, can.COMM_TAGS}
    | lacks(can.COMM_COALESCED, "gloo starts every collective separately", NOT_YET)
    | lacks(can.COMM_SYMMETRIC, "gloo has no memory that other ranks read", NOT_YET)
    | accumulates_wide("float16", "bfloat16")
    | invariant(can.INVARIANT_RUN, "float32", "bfloat16")
    | invariant(can.INVARIANT_COMPILE, "float32", "bfloat16")
    # Nothing is said of padding and strides in bfloat16: the processor's instructions decide which kernels there are.
    | depends(can.INVARIANT_BATCH, "float32", "bfloat16", reason=_KERNEL_BY_ROWS)
    | depends(can.INVARIANT_CHUNK, "float32", "bfloat16", reason=_KERNEL_BY_ROWS)
    | depends(can.INVARIANT_PADDING, "float32", reason=_KERNEL_BY_ROWS)
    | depends(can.INVARIANT_STRIDE, "float32", reason=_KERNEL_BY_STRIDE)
    | depends(can.INVARIANT_RANK, "float32", "bfloat16", reason=_SUM_OF_PARTS)
    | depends(can.INVARIANT_MODE, "float32", reason=_NO_MODE)
    | depends(can.INVARIANT_STREAM, "float32", "bfloat16", reason=_NO_STREAM)
    | depends(can.INVARIANT_GRAPH, "float32", "bfloat16", reason=_NO_GRAPH)
    | stores("float8_e4m3fn", "float8_e5m2")
    | dtypes("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
    | dtypes("int8", "int16", "int32", "int64", "uint8", "bool")
    | kernels(
        "multi_tensor_adam",
        "multi_tensor_lion",
        dtypes=("float32", "float16", "bfloat16"),
        mode=can.Mode.TRAINING,
    )
    | lacks(can.DEVICE_MULTIPLE, _ONE_DEVICE)
    | lacks(can.DEVICE_VISIBILITY, _ONE_DEVICE)
    | lacks(can.RNG_PER_DEVICE, _ONE_DEVICE)
    | lacks(can.STREAM, _NO_STREAM, NOT_YET)
    | lacks(can.STREAM_ORDER, _NO_STREAM, NOT_YET)
    | lacks(can.STREAM_RECORD, _NO_STREAM, NOT_YET)
    | lacks(can.EVENT, _NO_EVENT, NOT_YET)
    | lacks(can.EVENT_TIMING, _NO_EVENT, NOT_YET)
    | lacks(can.MEMORY_STATS, _NO_COUNTERS, NOT_YET)
    | lacks(can.MEMORY_PEAK, _NO_COUNTERS, NOT_YET)
    | lacks(can.MEMORY_PINNED, _NO_PINNING)
    | lacks(can.MEMORY_PINNED_ASYNC, _NO_PINNING)
    | lacks(can.MEMORY_OOM, "PyTorch's CPU allocator raises a plain RuntimeError", NOT_YET)
    | lacks(can.TORCH_ACCELERATOR, _HOST)
    | lacks(can.TORCH_ACCELERATOR_DTYPES, _HOST)
    | lacks(can.TORCH_ACCELERATOR_GRAPH, _HOST)
    | lacks(can.GRAPH_CAPTURE, _NO_GRAPH, NOT_YET)
    | lacks(can.GRAPH_POOL, _NO_GRAPH, NOT_YET)
    | lacks(can.TRITON, "Triton's releases compile no code for the CPU", NOT_YET),
)

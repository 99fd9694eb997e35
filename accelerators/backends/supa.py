"""Biren, through torch_supa."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    ALLOCATOR,
    PINNING,
    STREAMS,
    TORCH_BASE,
    communicates,
    dtypes,
    kernels,
    stores,
    strided_only,
)
from conformance.accelerators.torch_accelerator import TorchAccelerator

_FLOATING = ("float32", "float16", "bfloat16")
_DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool")

SUPA = TorchAccelerator(
    name="supa",
    vendor="Biren",
    package="torch_supa",
    # torch_supa also makes torch.cuda.is_available() True, so detection must not take it for a CUDA device.
    impersonates=frozenset({"cuda"}),
    collectives={"linux": "bccl", "win32": "gloo"},
    visible_devices="SUPA_VISIBLE_DEVICES",
    exports=("BCCL", "BIREN", "SUPA", "LD_LIBRARY", "PATH"),
    listing=("brsmi", "gpu", "list"),
    graph="SUPAGraph",
    triton=True,
    host_registration=("supart", "supaHostRegister", "supaHostUnregister"),
    synchronized=False,
    host_timers=False,
    ordered=False,
    backpressure=False,
    capabilities=TORCH_BASE
    | {can.TORCH_ACCELERATOR}
    | STREAMS
    | ALLOCATOR
    | PINNING
    # Triton is the vendor's own build in a separate package. is_triton_supported() looks for it; nothing is claimed.
    | {can.DEVICE_MULTIPLE, can.DEVICE_VISIBILITY, can.RNG_PER_DEVICE}
    | {can.GRAPH_CAPTURE, can.GRAPH_POOL, can.AUTOCAST, can.COMPILE}
    | communicates("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    # The process group of torch_supa has all of them, and refuses bitwise reductions.
    | ALL_COLLECTIVES
    | dtypes(*_DTYPES)
    | strided_only(*_DTYPES)
    | kernels("multi_tensor_adam", "multi_tensor_lion", dtypes=_FLOATING, mode=can.Mode.TRAINING)
    # PyTorch converts a device's tensors to float64 to print them.
    | stores("float64"),
)

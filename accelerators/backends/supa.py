"""Biren, through torch_supa."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import ALLOCATOR, PINNING, STREAMS, TORCH_BASE, dtypes
from conformance.accelerators.torch_accelerator import TorchAccelerator

SUPA = TorchAccelerator(
    name="supa",
    vendor="Biren",
    package="torch_supa",
    # torch_supa answers torch.cuda.is_available(), so its own module is asked, and before CUDA's.
    impersonates=frozenset({"cuda"}),
    collectives={"linux": "bccl", "win32": "gloo"},
    visible_devices="SUPA_VISIBLE_DEVICES",
    exports=("BCCL", "BIREN", "SUPA", "LD_LIBRARY", "PATH"),
    listing=("brsmi", "gpu", "list"),
    graph="SUPAGraph",
    triton=True,
    host_registration=("supart", "supaHostRegister", "supaHostUnregister"),
    capabilities=TORCH_BASE
    | STREAMS
    | ALLOCATOR
    | PINNING
    | {can.DEVICE_MULTIPLE, can.RNG_PER_DEVICE, can.GRAPH_CAPTURE, can.GRAPH_POOL, can.COMM, can.TRITON}
    | dtypes("float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"),
)

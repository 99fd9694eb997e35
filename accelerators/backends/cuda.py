"""GPUs of NVIDIA, and of AMD where torch is built for ROCm."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import (
    ALL_COLLECTIVES,
    ALLOCATOR,
    NOT_YET,
    PINNING,
    STREAMS,
    TORCH_BASE,
    Capabilities,
    accumulates_wide,
    communicates,
    dtypes,
    emulates,
    lacks,
    operators_without,
)
from conformance.accelerators.declaration import Detail
from conformance.accelerators.torch_accelerator import TorchAccelerator

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_PRODUCTS = (
    "__rmatmul__", "addbmm", "addmm", "addmm.decomposed", "addmv", "baddbmm", "bmm", "dot", "einsum", "inner",
    "linalg.multi_dot", "matmul", "mm", "mv", "nn.functional.bilinear", "nn.functional.linear", "tensordot", "vdot",
)  # fmt: skip
_CONVOLUTIONS = tuple(f"nn.functional.conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))
_AVERAGES = (*(f"nn.functional.avg_pool{n}d" for n in (1, 2, 3)), "nn.functional.local_response_norm")
_UPSAMPLING = (
    "_upsample_bilinear2d_aa", "nn.functional.interpolate.bicubic", "nn.functional.interpolate.bilinear",
    "nn.functional.upsample_bilinear",
)  # fmt: skip

#: What PyTorch's CPU computes and CUDA does not. Source: ``dtypesIfCUDA`` and ``onlyCPU`` in PyTorch's operator
#: database, which PyTorch's test ``test_dtypes`` compares with the kernels in both directions.
LACKS: Capabilities = frozenset().union(
    operators_without(_INTEGERS, _PRODUCTS, "the matrix libraries have no integer products"),
    operators_without(["int64"], [*_CONVOLUTIONS, *_AVERAGES], "the kernel has no integers"),
    operators_without(_INTEGERS, [f"nn.functional.max_pool{n}d" for n in (2, 3)], "the kernel has no integers"),
    operators_without(["uint8"], _UPSAMPLING, "the kernel has no integers"),
    operators_without(["float16", "bfloat16"], ["angle", "histc", "igamma", "igammac"], "there is no 16-bit kernel"),
    operators_without(["float32", "float64"], ["histogram", "histogramdd"], "there is no kernel"),
    operators_without([*_INTEGERS, "bool"], ["native_dropout_backward"], "the kernel has no integers"),
    operators_without(["bool"], [f"scatter_reduce.{kind}" for kind in ("amax", "amin", "prod")], "no kernel for bool"),
    operators_without(["float16", "bfloat16", "float32", "float64"], ["sparse.mm.reduce"], "there is no kernel"),
)

#: What runs on the host by design. Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``linalg_eig_out_info``.
ON_HOST: Capabilities = emulates(
    *(
        Cell(f"operators.{name}", dtype, mode)
        for name in ("linalg.eig", "linalg.eigvals")
        for dtype in ("float32", "float64", "complex64", "complex128")
        for mode in ("inference", "training")
    ),
    detail=Detail.HOST,
)

CUDA = TorchAccelerator(
    name="cuda",
    vendor="NVIDIA or AMD",
    collectives={"linux": "nccl", "win32": "gloo"},
    visible_devices="CUDA_VISIBLE_DEVICES",
    exports=("NCCL",),
    listing=("nvidia-smi", "--list-gpus"),
    graph="CUDAGraph",
    triton=True,
    # float16 arithmetic from Volta on, bfloat16 and Triton from Ampere on.
    needs_generation={"float16": (7, 0), "bfloat16": (8, 0), "triton": (8, 0)},
    # torch._grouped_mm is a single kernel from Hopper on. On older devices it is a loop over groups.
    triton_grouped_mm=((7, 0), (9, 0)),
    # By default, convolutions round their float32 inputs to TF32, and products of 16-bit numbers may add up in 16 bits.
    # Source: "Numerical accuracy" in PyTorch's notes. The claims below are about full precision.
    settings={
        "torch.backends.cudnn.allow_tf32": False,
        "torch.backends.cuda.matmul.allow_tf32": False,
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": False,
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    },
    host_registration=("cudart", "cudaHostRegister", "cudaHostUnregister"),
    range_tool="nvtx",
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
        can.DEVICE_VISIBILITY,
        can.RNG_PER_DEVICE,
        can.GRAPH_CAPTURE,
        can.TORCH_ACCELERATOR_DTYPES,
        can.GRAPH_POOL,
        can.MATMUL_FULL,
        can.DENORMALS,
        can.DETERMINISTIC,
        can.AUTOCAST,
        can.COMPILE,
        can.TRITON,
        can.PROFILER,
        can.DLPACK,
    }
    | communicates("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
    | ALL_COLLECTIVES
    | {can.COMM_COALESCED}
    | lacks(can.COMM_BITWISE, "NCCL has no bitwise reductions")
    | lacks(can.COMM_DEATH, "PyTorch's watchdog for NCCL ends the other ranks after the group's timeout", NOT_YET)
    | accumulates_wide("float16", "bfloat16")
    | dtypes("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
    | dtypes(*_INTEGERS, "bool")
    | LACKS
    | ON_HOST,
)

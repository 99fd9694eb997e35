"""Declaration of MetaforeAI/NovaTorch (Vulkan compute): what its source registers and its tests check.

It has one device, one queue and kernels of float32; other dtypes are stored and moved. Nothing seeds it.
"""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import Cell
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, lacks, stores
from conformance.accelerators.torch_accelerator import TorchAccelerator

#: Operators with a kernel and a backward that the project's own tests call, and those with a kernel alone.
_TRAINED = (
    "add", "sub", "mul", "div.no_rounding_mode", "neg", "sum", "mean", "mm", "addmm", "bmm", "nn.functional.relu",
    "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "reciprocal", "t", "transpose", "permute", "view",
    "reshape", "expand", "unsqueeze", "squeeze", "clone", "cat", "softmax", "log_softmax",
    "nn.functional.linear", "nn.functional.embedding",
)  # fmt: skip
_FORWARD = (
    "pow", "clamp", "where", "zeros_like", "ones_like", "full_like", "empty_like", "empty_strided", "arange", "fill",
    "zero_", "contiguous", "isnan", "logical_and", "lerp", "addcmul", "addcdiv", "eq", "ne", "gt", "lt", "ge", "le",
    "maximum", "minimum", "nn.functional.nll_loss", "nonzero", "index_put", "linalg.vector_norm", "scalar_tensor",
    "select", "slice", "any", "nn.functional.scaled_dot_product_attention", "as_strided",
)  # fmt: skip


class Nova(TorchAccelerator):
    """Accelerator over ``torch.nova``, which has one device and no function to choose it."""

    def set_device(self, device_index: int) -> None:
        self._index(device_index)


NOVA = Nova(
    name="nova",
    vendor="NovaTorch",
    package="novatorch",
    compile_backend="nova",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    ordered=True,
    capabilities=(TORCH_BASE - {can.RNG_STATE, can.RNG_GENERATOR})
    | {can.COMPILE, can.MATMUL_FULL}
    | stores("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
    | {Cell(f"operators.{name}", "float32", mode) for name in _TRAINED for mode in ("inference", "training")}
    | {Cell(f"operators.{name}", "float32", "inference") for name in _FORWARD}
    | lacks(can.RNG_STATE, "draws are seeded by the system", NOT_YET)
    | lacks(can.RNG_GENERATOR, "draws are seeded by the system", NOT_YET)
    | lacks(can.STREAM, "one queue", NOT_YET)
    | lacks(can.EVENT, "one queue", NOT_YET)
    | lacks(can.MEMORY_STATS, "novatorch._C.get_memory_stats() alone", NOT_YET)
    | lacks(can.MEMORY_PINNED, "no pinned memory", NOT_YET)
    | lacks(can.DLPACK, "no address", NOT_YET),
)

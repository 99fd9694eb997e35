"""Declaration of torch-mojo-backend 0.3.1, whose README has "a limited set of operations": each claim has a name."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.claims import NOT_YET, lacks, stores
from conformance.accelerators.torch_accelerator import TorchAccelerator

# Operators that torch_mojo_backend/mojo_device/mojo_device_aten_ops.py registers for float32, and for int64.
FLOAT = (
    "abs", "acos", "add", "addcdiv", "addcmul", "addmm", "all", "amax", "amin", "any", "argmax", "argmin", "asinh",
    "atanh", "bmm", "cat", "ceil", "clamp", "clone", "cos", "cosh", "cumsum", "div.no_rounding_mode", "eq", "erf",
    "exp", "expand", "floor", "full_like", "ge", "gt", "isnan", "le", "lerp", "log", "log1p", "logical_and",
    "logical_not", "lt", "masked_fill", "maximum", "mean", "minimum", "mm", "mul", "ne", "neg", "nonzero",
    "ones_like", "permute", "reciprocal", "remainder", "repeat", "rsqrt", "select", "sigmoid", "sign", "sin", "sinh",
    "split", "sqrt", "stack", "sub", "sum", "t", "tan", "tanh", "transpose", "tril", "triu", "unbind", "unsqueeze",
    "where", "zeros_like", "nn.functional.relu", "nn.functional.gelu", "nn.functional.silu", "nn.functional.linear",
    "softmax",
)  # fmt: skip
INT = (
    "add", "mul", "sub", "eq", "ne", "ge", "gt", "le", "lt", "cat", "clone", "expand", "full_like", "ones_like",
    "zeros_like", "permute", "select", "sum", "t", "transpose", "where",
)  # fmt: skip

MOJO = TorchAccelerator(
    name="mojo",
    vendor="torch-mojo-backend",
    package="mojo_registered",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core)
    | {can.RNG_STATE}
    | stores("float32", "int64", "bool")
    | {Cell(f"operators.{name}", "float32", "inference") for name in FLOAT}
    | {Cell(f"operators.{name}", "int64", "inference") for name in INT}
    | lacks(can.STREAM, "one queue", NOT_YET)
    | lacks(can.EVENT, "one queue", NOT_YET),
)

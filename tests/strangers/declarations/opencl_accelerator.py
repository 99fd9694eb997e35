"""Declaration of torch-opencl 0.1.0.dev23: what ``csrc/aten/RegisterOpenCL.cpp`` registers, and its tests check.

It needs torch 2.12, and an OpenCL driver, such as Debian's ``pocl-opencl-icd``. It has no documentation of operators.
"""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.claims import NOT_YET, emulates, lacks, stores
from conformance.accelerators.declaration import Detail
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.torch_accelerator import TorchAccelerator

# Kernels of its own. ``zeros_like`` and the like need these only.
OWN = (
    "as_strided", "clone", "empty", "empty_like", "empty_strided", "full_like", "ones_like", "zeros_like", "view",
    "reshape",
)  # fmt: skip
# "CPU fallback for display/diagnostic ops". Of ``gt`` and ``fill_`` it has the forms with a number alone, and of
# ``max`` and ``min`` the form with ``out=`` alone.
HOST = ("abs", "add", "ceil", "div.no_rounding_mode", "eq", "masked_select", "mul", "ne", "sub")

OPENCL = TorchAccelerator(
    name="opencl",
    vendor="torch-opencl",
    package="torch_opencl",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    # Its tests seed nothing and save nothing, so ``rng`` and ``checkpoint`` are left undeclared.
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core and one not in (can.RNG, can.CHECKPOINT))
    | {can.DEVICE_INDEX}
    | stores("float32", "float64", "int32", "int64")
    | {Cell(f"operators.{name}", "float32", "inference") for name in OWN}
    | emulates(*(Cell(f"operators.{name}", "float32", "inference") for name in HOST), detail=Detail.HOST)
    | lacks(can.RNG_GENERATOR, "no generator is registered", NOT_YET)
    | lacks(can.STREAM, "one queue", NOT_YET)
    | lacks(can.EVENT, "one queue", NOT_YET),
)

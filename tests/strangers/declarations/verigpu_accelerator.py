"""Declaration of the PyTorch backend of GChacon8/VeriGPU (branch develop): the operators that its source lists."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.accelerators.capabilities import VOCABULARY, Cell
from conformance.accelerators.claims import NOT_YET, lacks, stores
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator

#: What the comments of verigpu_backend.cpp list.
_OPERATORS = (
    "add", "sub", "mul", "div.no_rounding_mode", "neg", "abs", "nn.functional.relu", "clamp", "sum", "mean", "mm",
    "addmm",
)  # fmt: skip


class VeriGPU(TorchAccelerator):
    """Accelerator over ``torch.verigpu``, which has one device and ends each operation before it returns."""

    def set_device(self, device_index: int) -> None:
        self._index(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        self._index(device_index)


VERIGPU = VeriGPU(
    name="verigpu",
    vendor="VeriGPU",
    package="verigpu_registered",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    synchronized=True,
    ordered=True,
    memory=ProcessMemory(),
    randomness=HostGenerator(),
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core)
    | stores("float32", "float64", "int32", "int64", "bool")
    | {Cell(f"operators.{name}", dtype, "inference") for name in _OPERATORS for dtype in ("float32", "float64")}
    | lacks(can.STREAM, "no streams", NOT_YET)
    | lacks(can.EVENT, "no events", NOT_YET),
)

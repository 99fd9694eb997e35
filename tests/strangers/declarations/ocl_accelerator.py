"""Declaration of dlprimitives' OpenCL backend for PyTorch: what its README promises."""

from __future__ import annotations

from conformance.accelerators.capabilities import VOCABULARY
from conformance.accelerators.claims import dtypes, operators_without, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.torch_accelerator import TorchAccelerator


class OpenCL(TorchAccelerator):
    """Accelerator over ``torch.ocl``, which has neither a list of devices nor a current one."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1


#: Their results or their steps are complex, and its table of dtypes has no complex one.
_COMPLEX = (
    "fft.*",
    "stft",
    "istft",
    "complex",
    "polar",
    "view_as_complex",
    "cfloat",
    "cdouble",
    "chalf",
    "linalg.eig*",
)

OCL = OpenCL(
    name="ocl",
    vendor="dlprimitives",
    package="pytorch_ocl",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    # The README: "many operators not implemented and there may be fallbacks to CPU. […] Some may just fail".
    capabilities=frozenset(one for one in VOCABULARY.values() if one.core)
    | dtypes("float32", detail=Detail.HOST)
    | strided_only("float32")
    | operators_without(("float32",), _COMPLEX, "no complex dtype")
    | operators_without(("float32",), ("hash_tensor",), "no uint64"),
)

"""Declaration of torch_xla 2.9 on its CPU client: what "PyTorch on XLA Devices" and its API guide promise.

The guide: operators without a lowering are computed by the host, tensors always appear to be contiguous, and the
random state is one number per device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, dtypes, lacks, stores, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.memory import ProcessMemory
from conformance.accelerators.torch_accelerator import TorchAccelerator

if TYPE_CHECKING:
    import torch


class XlaSeeds:
    """Random numbers by ``torch_xla.manual_seed``, and by ``get_rng_state`` and ``set_rng_state`` of ``xla_model``."""

    def functions(self, module: Any) -> Any:
        import torch

        return torch.random

    def generator(self, module: Any, index: int) -> torch.Generator:
        raise NotImplementedError("torch_xla has no torch.Generator")

    def seed(self, module: Any, current: int, seed: int, count: Callable[[], int] | None = None) -> None:
        module.manual_seed(seed, device=f"xla:{current}")

    def seed_all(self, module: Any, count: int, seed: int) -> None:
        for index in range(count):
            module.manual_seed(seed, device=f"xla:{index}")

    def initial_seed(self, module: Any, current: int) -> int:
        raise NotImplementedError("torch_xla has no initial_seed()")

    def state(self, module: Any, index: int) -> torch.Tensor:
        import torch
        import torch_xla.core.xla_model as xm

        # The state is one unsigned number of 64 bits, and the interface's states are bytes.
        return torch.tensor(list(xm.get_rng_state(device=f"xla:{index}").to_bytes(8, "little")), dtype=torch.uint8)

    def set_state(self, module: Any, index: int, state: torch.Tensor) -> None:
        import torch
        import torch_xla.core.xla_model as xm

        if state.dtype is not torch.uint8 or state.shape != (8,):
            raise ValueError("a state has eight bytes")
        xm.set_rng_state(int.from_bytes(state.tolist(), "little"), device=f"xla:{index}")


class Xla(TorchAccelerator):
    """Accelerator over ``torch_xla``, which has neither streams nor a module in torch."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Run what was recorded, and wait for it."""
        self._index(device_index)
        self._module.sync(wait=True)
        self._module.core.xla_model.wait_device_ops()


XLA = Xla(
    name="xla",
    vendor="PyTorch/XLA",
    package="torch_xla",
    module="torch_xla",
    compile_backend="openxla",
    streams=False,
    events=False,
    pins=False,
    simulated=True,
    memory=ProcessMemory(),
    randomness=XlaSeeds(),
    capabilities=(TORCH_BASE - {can.RNG_GENERATOR})
    | {can.COMPILE}
    | lacks(can.RNG_GENERATOR, "random numbers come from one seed per device", NOT_YET)
    | lacks(can.STREAM, "the graph is run as a whole", NOT_YET)
    | lacks(can.EVENT, "the graph is run as a whole", NOT_YET)
    | dtypes("float32", detail=Detail.HOST)
    | stores("bfloat16", "float16", "float64", "int32", "int64", "uint8", "bool")
    | strided_only("float32"),
)

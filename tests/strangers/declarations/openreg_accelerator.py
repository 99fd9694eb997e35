"""Declaration of OpenReg, PyTorch's reference of a C++ backend on PrivateUse1: what its README and tests promise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import NOT_YET, TORCH_BASE, dtypes, lacks, operators_without, strided_only
from conformance.accelerators.declaration import Detail
from conformance.accelerators.randomness import HostGenerator
from conformance.accelerators.torch_accelerator import TorchAccelerator


class OpenReg(TorchAccelerator):
    """Accelerator over ``torch.openreg``, and over ``torch.accelerator`` for streams, events and waiting."""

    def synchronize(self, device_index: int | None = None) -> None:
        self._torch.accelerator.synchronize(self._index(device_index))

    @property
    def Stream(self) -> Any:
        return self._torch.Stream

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = super().stream(None) if stream is None else stream
        return context

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._torch.accelerator.current_stream(self._index(device_index))

    def default_stream(self, device_index: int | None = None) -> Any:
        # A new thread starts on the default stream.
        index = self._index(device_index)
        return _in_new_thread(lambda: self._torch.accelerator.current_stream(index))

    @property
    def Event(self) -> Any:
        return self._torch.Event


def _in_new_thread(function: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "bool")
#: Two kernels that its source registers as examples: abs for contiguous float32, and attention that fills no result.
_EXAMPLES = ("abs", "nn.functional.scaled_dot_product_attention")

#: A test of its own is skipped with these words.
_NO_GENERATORS = "openreg backend does not implement per-device RNG yet"

OPENREG = OpenReg(
    name="openreg",
    vendor="PyTorch",
    package="torch_openreg",
    simulated=True,
    randomness=HostGenerator(),
    # The README: operators without a kernel of their own are computed by the host, and streams and events are CUDA's.
    capabilities=(TORCH_BASE - {can.RNG_GENERATOR})
    | {can.DEVICE_MULTIPLE, can.STREAM, can.STREAM_ORDER, can.EVENT, can.EVENT_TIMING}
    | {can.MEMORY_STATS, can.MEMORY_PINNED, can.TORCH_ACCELERATOR}
    | lacks(can.RNG_GENERATOR, _NO_GENERATORS, NOT_YET)
    | lacks(can.RNG_PER_DEVICE, _NO_GENERATORS, NOT_YET)
    | lacks(can.AUTOCAST, "rules for mm and asin only, as examples", NOT_YET)
    | lacks(can.STREAM_RECORD, "its allocator ignores streams", NOT_YET)
    | dtypes(*_DTYPES, *_INTEGERS, detail=Detail.HOST)
    | strided_only(*_DTYPES, *_INTEGERS)
    | operators_without(_DTYPES, _EXAMPLES, "an example of a registration, without all of its cases"),
)

"""Accelerators that torch drives: every member of the interface, derived from ``torch.<name>`` and a backend's data.

CUDA = TorchAccelerator(name="cuda", vendor="NVIDIA", collectives={"linux": "nccl"}, graph="CUDAGraph", ...)
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from conformance.accelerators import members
from conformance.accelerators.capabilities import TRITON
from conformance.accelerators.interface import MissingMember
from conformance.accelerators.torch_backend import Generation, TorchBackend

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: Imported by name on use: this room must not import the kernels room.
_BUILDERS = "conformance.kernels.builders"


def _constructor(dtype: str) -> Any:
    """Return a property: a function that builds a tensor of this dtype on the accelerator's device from a list."""

    def build(self: TorchAccelerator) -> Any:
        return functools.partial(self._torch.tensor, dtype=self._dtype(dtype), device=self._type)

    return property(build)


class TorchAccelerator(TorchBackend):
    """An accelerator that torch drives. A backend only declares data; all members are implemented here."""

    # --- execution model ----------------------------------------------------------------------------------------------

    def is_synchronized_device(self) -> bool:
        return bool(self.synchronized)

    def use_host_timers(self) -> bool:
        return bool(self.host_timers) or not self.events

    def resolves_data_dependency(self) -> bool:
        return bool(self.ordered)

    def handles_memory_backpressure(self) -> bool:
        return bool(self.backpressure)

    # --- devices ------------------------------------------------------------------------------------------------------

    def device_name(self, device_index: int | None = None) -> str:
        return self._type if device_index is None else f"{self._type}:{int(device_index)}"

    def device(self, device_index: int | None = None) -> torch.device:
        index = self.current_device() if device_index is None else int(device_index)
        device: torch.device = self._torch.device(self._type, index)
        return device

    def set_device(self, device_index: int) -> None:
        index = self._index(device_index)
        if not self.is_host:
            members.call(self._module, "set_device", index, instead=functools.partial(self._select, index))
            self._check_current(index)

    def _check_current(self, index: int) -> None:
        """Raise MissingMember if new tensors are on another device than the one that was made current."""
        used = self._torch.empty(0, device=self._type).device.index
        if used not in (index, None):
            path = self._module_path
            said = f"{path}.set_device({index}) has no effect: new tensors are on device {used}"
            raise MissingMember("set_device", path, said)

    def _select(self, index: int) -> None:
        """Make a device current whose module cannot; the only device is current already."""
        if self.device_count() > 1:
            self._general("set_device", "set_device_index", index)()

    def current_device(self) -> int:
        if self.is_host:
            return 0
        return int(members.answer(self._module, "current_device", instead=self._current))

    def _current(self) -> int:
        """Return the index of the current device, for a module that does not tell it."""
        return int(self._general("current_device", "current_device_index")()) if members.is_general(self._type) else 0

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        return int(members.answer(self._module, "device_count", instead=self._counted))

    def _counted(self) -> int:
        """Return the number of devices, for a module that does not tell it: one if nobody counts and it computes."""
        counted = self._torch._C.__dict__.get("_accelerator_hooks_device_count")
        try:
            count = int(counted()) if counted is not None and members.is_general(self._type) else 0
            return count or int(self._torch.empty(1, device=self._type).numel())
        except Exception as error:
            raise members.missing(self._module, "device_count") from error

    def synchronize(self, device_index: int | None = None) -> None:
        index = self._index(device_index)
        function = getattr(self._module, "synchronize", None)
        if self.synchronized is False:
            members.check_does_something(self._module, "synchronize", function)
        # torch.cpu.synchronize() takes a device, which it ignores: a host has one.
        given = (None if self.is_host else index,) if function is None or _takes_index(function) else ()
        members.call(self._module, "synchronize", *given, instead=self._general("synchronize", "synchronize", index))

    def _general(self, name: str, function: str, *arguments: Any) -> Callable[[], Any]:
        """Return a call of ``torch.accelerator.<function>``, for a module without ``name``."""
        return members.general(self._type, self._module, name, function, *arguments)

    def _index(self, index: int | torch.device | None) -> int:
        """Return an existing device index, for None the current one; raise ValueError for any other index."""
        number = index if index is None or isinstance(index, int) else index.index
        if number is None:
            return self.current_device()
        if not 0 <= number < self.device_count():
            count = self.device_count()
            raise ValueError(f"{self.name} has {count} device(s), counted from 0; {index!r} is not one of them")
        return number

    # --- random numbers -----------------------------------------------------------------------------------------------

    def random(self) -> Any:
        return self.randomness.functions(self._module)

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        # Generators accept only states in host memory.
        self.randomness.set_state(self._module, self._index(device_index), new_state.cpu())

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return self.randomness.state(self._module, self._index(device_index))

    def manual_seed(self, seed: int) -> None:
        self.randomness.seed(self._module, self.current_device(), int(seed), self.device_count)

    def manual_seed_all(self, seed: int) -> None:
        self.randomness.seed_all(self._module, self.device_count(), int(seed))

    def initial_seed(self) -> int:
        return self.randomness.initial_seed(self._module, self.current_device())

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        return self.randomness.generator(self._module, self._index(device_index))

    # --- streams and events -------------------------------------------------------------------------------------------

    @property
    def Stream(self) -> Any:
        return self._class("Stream") if self.streams else None

    def _class(self, name: str) -> Any:
        """Return a class of the module, or the one that PyTorch has for every device."""
        found = getattr(self._module, name, None)
        if found is None and members.makes(self._type, name):
            return getattr(self._torch, name)
        return members.maker(self._module, name)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        if stream is None or not self.streams:
            return nullcontext()
        # A stream of PyTorch's own class is a context itself.
        own = (lambda: stream) if isinstance(stream, getattr(self._torch, "Stream", ())) else None
        context: AbstractContextManager[Any] = members.answer(self._module, "stream", stream, instead=own)
        return context

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._current_stream(self._index(device_index)) if self.streams else None

    def _current_stream(self, index: int) -> Any:
        has_own = members.makes(self._type, "Stream")
        general = self._general("current_stream", "current_stream", index) if has_own else None
        return members.answer(self._module, "current_stream", index, instead=general)

    def default_stream(self, device_index: int | None = None) -> Any:
        if not self.streams:
            return None
        index = self._index(device_index)
        # The current stream is a property of a thread, and a new thread starts on the default stream.
        first = functools.partial(_in_new_thread, lambda: self._current_stream(index))
        return members.answer(self._module, "default_stream", index, instead=first)

    @property
    def Event(self) -> Any:
        return self._class("Event") if self.events else None

    # --- memory -------------------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        self.memory.empty_cache(self._module)

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self.memory.allocated(self._module, self._index(device_index))

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self.memory.peak_allocated(self._module, self._index(device_index))

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def memory_cached(self, device_index: int | None = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return self.memory.stats(self._module, self._index(device_index))

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self.memory.reset_peaks(self._module, self._index(device_index))

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self.memory.reserved(self._module, self._index(device_index))

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return self.memory.peak_reserved(self._module, self._index(device_index))

    def total_memory(self, device_index: int | None = None) -> int:
        return self.memory.total(self._module, self._index(device_index))

    def available_memory(self, device_index: int | None = None) -> int:
        return self.memory.available(self._module, self._index(device_index))

    # --- data types ---------------------------------------------------------------------------------------------------

    def is_bf16_supported(self) -> bool:
        return self._computes("bfloat16")

    def is_fp16_supported(self) -> bool:
        return self._computes("float16")

    def is_fp64_supported(self) -> bool:
        return self._computes("float64")

    def supported_dtypes(self) -> list[torch.dtype]:
        return [self._dtype(name) for name in self._declared_floating() if self._computes(name)]

    def _computes(self, dtype: str) -> bool:
        """Return whether the dtype is declared and this device's generation supports it."""
        return dtype in self._declared_floating() and self._is_new_enough(dtype)

    def _is_new_enough(self, feature: str) -> bool:
        """Return whether this device's generation has the feature. Features without an entry need none."""
        needed = self.needs_generation.get(feature)
        if needed is None:
            return True
        return self.is_available() and self._generation() >= needed

    def _generation(self) -> Generation:
        major, minor = members.answer(self._module, "get_device_capability", self.current_device())
        return int(major), int(minor)

    # --- software around the device -----------------------------------------------------------------------------------

    def is_available(self) -> bool:
        told = members.answer(self._module, "is_available", instead=lambda: self.device_count() > 0)
        return bool(told) and self.device_count() > 0

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        self._ranges.push(getattr(self._module, self.range_tool, None) if self.range_tool else None, msg)

    def range_pop(self, domain: str | None = None) -> None:
        self._ranges.pop()

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        queue = getattr(self._module, "_lazy_call", None)
        # A module without a queue is initialised when it is imported, so the callback need not wait.
        if queue is None:
            callback()
        else:
            queue(callback)

    def communication_backend_name(self) -> str | None:
        return self.collectives.get(sys.platform)

    def is_triton_supported(self) -> bool:
        return self.triton and importlib.util.find_spec("triton") is not None and self._is_new_enough("triton")

    def prefer_triton_grouped_mm(self) -> bool:
        if self.triton_grouped_mm is None or not self.is_triton_supported():
            return False
        first, end = self.triton_grouped_mm
        return first <= self._generation() < end

    # --- graphs -------------------------------------------------------------------------------------------------------

    def is_current_stream_capturing(self) -> bool:
        if not self.graph:
            return False
        return bool(members.answer(self._module, "is_current_stream_capturing", instead=lambda: False))

    def create_graph(self) -> Any:
        return members.answer(self._module, self.graph) if self._has_graphs else None

    @property
    def _has_graphs(self) -> bool:
        # An older torch may lack the graph class.
        return bool(self.graph) and hasattr(self._module, self.graph)

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        if not self._has_graphs:
            return nullcontext()
        # Arguments that are None are left out, so the module's own defaults apply.
        given = {"pool": pool, "stream": stream}
        some = {name: value for name, value in given.items() if value is not None}
        context: AbstractContextManager[Any] = members.answer(self._module, "graph", graph, **some)
        return context

    def replay_graph(self, graph: Any) -> None:
        if self._has_graphs:
            graph.replay()

    # --- typed tensor constructors ------------------------------------------------------------------------------------

    BFloat16Tensor, ByteTensor, DoubleTensor, FloatTensor, HalfTensor, IntTensor, LongTensor = map(
        _constructor, ("bfloat16", "uint8", "float64", "float32", "float16", "int32", "int64")
    )

    # --- host memory --------------------------------------------------------------------------------------------------

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        if not make_copy:
            return self._empty_pinned(tuple(tensor.shape) if match_shape else (tensor.numel(),), tensor.dtype)
        _refuse_native_pinning()
        return tensor.pin_memory() if self.pins else tensor

    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        self._require_host(device)
        first = size[0] if size else ()
        shape = tuple(first) if isinstance(first, Sequence) else size
        return self._empty_pinned(shape, dtype)

    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        self._require_host(device)
        return self._empty_pinned(tuple(tensor.shape), dtype or tensor.dtype)

    def _empty_pinned(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        _refuse_native_pinning()
        tensor: torch.Tensor = self._torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.pins)
        return tensor

    def _require_host(self, device: str | torch.device) -> None:
        """Raise ``ValueError`` for a device that is not the host."""
        try:
            kind = self._torch.device(device).type
        except RuntimeError:
            kind = None
        if kind != "cpu":
            raise ValueError(f"only host memory can be page-locked; device must be 'cpu', not {device!r}")

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and bool(tensor.is_pinned())

    def unpin_memory(self, tensor: torch.Tensor) -> bool | None:
        return None

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        if self.host_registration is None:
            return False
        runtime, register, _ = self.host_registration
        self._module.check_error(int(getattr(getattr(self._module, runtime)(), register)(address, num_bytes, 0)))
        return True

    def unregister_host_memory(self, address: int) -> None:
        if self.host_registration is None:
            return
        runtime, _, unregister = self.host_registration
        self._module.check_error(int(getattr(getattr(self._module, runtime)(), unregister)(address)))

    def pin_memory_alignment(self) -> int:
        return self.pin_alignment

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._type

    # --- operator builders --------------------------------------------------------------------------------------------

    def op_builder_dir(self) -> str:
        return _BUILDERS

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> Any:
        declares = ((TRITON.name, self.is_triton_supported),) if self.triton else ()
        return importlib.import_module(_BUILDERS).find_builder(class_name, self._type, self.kernel_library, declares)

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    # --- environment and compilation ----------------------------------------------------------------------------------

    def export_envs(self) -> list[str]:
        return list(self.exports)

    def visible_devices_envs(self) -> list[str]:
        return [self.visible_devices or f"{self.name.upper()}_VISIBLE_DEVICES"]

    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int]
    ) -> None:
        ids = ",".join(str(number) for number in local_accelerator_ids)
        current_env.update(dict.fromkeys(self.visible_devices_envs(), ids))

    def get_compile_backend(self) -> str:
        return self._compile.name or self.compile_backend

    def set_compile_backend(self, backend: str) -> None:
        import torch._dynamo

        # exclude_tags=() also lists the debug and experimental backends, which torch.compile accepts as well.
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(
                f"{backend!r} is not a registered torch.compile backend; registered: {', '.join(sorted(known))}"
            )
        self._compile.name = backend


@functools.cache  # every case synchronizes several times, and inspect.signature is slow
def _takes_index(function: Callable[..., Any]) -> bool:
    """Return whether a function of a torch module takes a device. Compiled functions without a signature do."""
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True


def _in_new_thread(function: Callable[[], T]) -> T:
    """Return the result of ``function`` in a thread of its own, or raise its exception here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _refuse_native_pinning() -> None:
    """Raise ``NotImplementedError`` if DeepSpeed's variable asks for a pinning library."""
    if os.environ.get("DS_PIN_MEMORY_BACKEND", "torch") not in ("", "torch"):
        raise NotImplementedError(
            "DS_PIN_MEMORY_BACKEND names a pinning library that is not part of this accelerator; "
            "unset it, or set it to 'torch'"
        )

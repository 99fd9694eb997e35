"""The accelerator interface: every member of DeepSpeed's ``DeepSpeedAccelerator`` (0.19.8), typed, with its meaning.

Names, arguments and meaning are DeepSpeed's. Its accelerators can therefore be tested without an adapter, and ours
work where DeepSpeed expects one. Each docstring states behavior that a test can check. ``device_index=None`` always
means the current device, and a given index always means that device.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class MissingMember(AttributeError, NotImplementedError):
    """The accelerator has no such member. An incomplete accelerator can be tested too: the gap becomes a verdict."""

    def __init__(self, member: str, accelerator: str, said: str = "") -> None:
        super().__init__(said or f"{accelerator} has no member {member!r}")
        self.member, self.accelerator = member, accelerator


class TorchModule:
    """View of ``torch.<name>``. A function that the module lacks raises ``MissingMember`` with the module's name."""

    def __init__(self, module: Any, path: str) -> None:
        self._conformance_module, self.__name__ = module, path

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._conformance_module, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            raise MissingMember(name, self.__name__) from None


def stands_for_nothing(builder: object) -> bool:
    """Return whether an operator builder stands for a missing operator: None, or a ``NotImplementedBuilder``.

    DeepSpeed's and our placeholder builders have that class name. DeepSpeed's one reports that it is compatible and
    raises when it is loaded, so only the name can be checked.
    """
    return builder is None or type(builder).__name__ == "NotImplementedBuilder"


def _constructor(dtype: str) -> Any:
    """Return an abstract property for a typed tensor constructor."""

    def build(self: Accelerator) -> Any:
        raise NotImplementedError

    build.__doc__ = f"Return a function that builds a tensor of {dtype} on the device from a list."
    return property(abstractmethod(build))


class Accelerator(ABC):
    """The interface of a device for a training engine."""

    #: Whether ``range_push`` and ``range_pop`` distinguish domains.
    supports_nvtx_domain: bool = False

    # --- execution model --------------------------------------------------------------------------------------------

    @abstractmethod
    def is_synchronized_device(self) -> bool:
        """Return whether every operation is complete when its call returns. Then host clocks measure it correctly."""

    @abstractmethod
    def use_host_timers(self) -> bool:
        """Return whether durations must be measured with the host's clock. Always True when ``Event`` is None."""

    @abstractmethod
    def resolves_data_dependency(self) -> bool:
        """Return whether operations run in program order across streams. Then callers may omit ``wait_stream``."""

    @abstractmethod
    def handles_memory_backpressure(self) -> bool:
        """Return whether queueing work blocks, instead of running out of memory, when too much work is pending."""

    # --- devices ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def device_name(self, device_index: int | None = None) -> str:
        """Return the device type without an index, ``type:index`` with one. ``torch.device`` accepts both."""

    @abstractmethod
    def device(self, device_index: int | None = None) -> torch.device:
        """Return a ``torch.device`` with the given index, or with the current one."""

    @abstractmethod
    def set_device(self, device_index: int) -> None:
        """Make a device current for this thread. An index without a device raises and changes nothing."""

    @abstractmethod
    def current_device(self) -> int:
        """Return the index of the current device, as an int."""

    @abstractmethod
    def current_device_name(self) -> str:
        """Return ``type:index`` of the current device."""

    @abstractmethod
    def device_count(self) -> int:
        """Return how many devices this process can address: a constant number, positive if ``is_available()``."""

    @abstractmethod
    def synchronize(self, device_index: int | None = None) -> None:
        """Block until all work queued on the device is complete."""

    # --- random numbers ---------------------------------------------------------------------------------------------

    @abstractmethod
    def random(self) -> Any:
        """Return the module that holds the device's random functions."""

    @abstractmethod
    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Restore a state from ``get_rng_state``. The numbers drawn after it repeat bit for bit."""

    @abstractmethod
    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """Return the generator's state as a uint8 host tensor, without advancing the generator."""

    @abstractmethod
    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator. Equal seeds give equal numbers, different seeds different ones."""

    @abstractmethod
    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""

    @abstractmethod
    def initial_seed(self) -> int:
        """Return the seed of the current device's generator."""

    @abstractmethod
    def default_generator(self, device_index: int | None) -> torch.Generator:
        """Return the device's own generator. ``default_generator(i).get_state()`` equals ``get_rng_state(i)``."""

    # --- streams and events -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def Stream(self) -> Any:
        """Return the stream class, or None on a device without streams."""

    @abstractmethod
    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which ``stream`` is current. For None the context does nothing."""

    @abstractmethod
    def current_stream(self, device_index: int | None = None) -> Any:
        """Return the current stream; None exactly if ``Stream`` is None."""

    @abstractmethod
    def default_stream(self, device_index: int | None = None) -> Any:
        """Return the stream that is current before any other is entered; None exactly if ``Stream`` is None."""

    @property
    @abstractmethod
    def Event(self) -> Any:
        """Return the event class, or None. None implies ``use_host_timers()``."""

    # --- memory, in bytes -------------------------------------------------------------------------------------------

    @abstractmethod
    def empty_cache(self) -> None:
        """Release unused cached memory. Live tensors keep their values, and reserved memory does not grow."""

    @abstractmethod
    def memory_allocated(self, device_index: int | None = None) -> int:
        """Return the bytes of live tensors as the allocator counts them, or without counters the best estimate."""

    @abstractmethod
    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Return the largest ``memory_allocated`` since the last reset."""

    @abstractmethod
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Reset the peak of allocated memory to its current value."""

    @abstractmethod
    def memory_cached(self, device_index: int | None = None) -> int:
        """Return ``memory_reserved``; an older name of it."""

    @abstractmethod
    def max_memory_cached(self, device_index: int | None = None) -> int:
        """Return ``max_memory_reserved``; an older name of it."""

    @abstractmethod
    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Reset the peak of reserved memory to its current value."""

    @abstractmethod
    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        """Return the allocator's counters. ``allocated_bytes.all.current`` equals ``memory_allocated``.

        An empty dictionary means that the allocator counts nothing.
        """

    @abstractmethod
    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Reset every peak to its current value."""

    @abstractmethod
    def memory_reserved(self, device_index: int | None = None) -> int:
        """Return the bytes taken from the device, both allocated and cached."""

    @abstractmethod
    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Return the largest ``memory_reserved`` since the last reset."""

    @abstractmethod
    def total_memory(self, device_index: int | None = None) -> int:
        """Return the size of the device's memory in bytes; positive."""

    @abstractmethod
    def available_memory(self, device_index: int | None = None) -> int:
        """Return the bytes this process can still allocate: at most ``total_memory``, and less after an allocation."""

    # --- data types -------------------------------------------------------------------------------------------------

    @abstractmethod
    def is_bf16_supported(self) -> bool:
        """Return whether ``torch.bfloat16`` is in ``supported_dtypes()``."""

    @abstractmethod
    def is_fp16_supported(self) -> bool:
        """Return whether ``torch.float16`` is in ``supported_dtypes()``."""

    def is_fp64_supported(self) -> bool:
        """Return whether the device computes in float64. True unless an accelerator overrides it."""
        return True

    @abstractmethod
    def supported_dtypes(self) -> list[torch.dtype]:
        """Return the floating-point dtypes in which models can train; float32 is always one of them."""

    # --- software around the device ---------------------------------------------------------------------------------

    @abstractmethod
    def is_available(self) -> bool:
        """Return whether a device of this kind is usable here."""

    @abstractmethod
    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Open a named range for profilers. Ranges nest, never raise, and change no result."""

    @abstractmethod
    def range_pop(self, domain: str | None = None) -> Any:
        """Close the innermost range. Never raises, even if none is open."""

    @abstractmethod
    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Run ``callback`` now, or as soon as the device is initialised; never drop it."""

    @abstractmethod
    def communication_backend_name(self) -> str | None:
        """Return the backend's name for ``torch.distributed.init_process_group``, or None without a backend."""

    @abstractmethod
    def is_triton_supported(self) -> bool:
        """Return whether Triton kernels compile and run."""

    def prefer_triton_grouped_mm(self) -> bool:
        """Return whether a Triton grouped matrix product is faster than ``torch._grouped_mm`` here."""
        return False

    # --- graphs -----------------------------------------------------------------------------------------------------

    def is_current_stream_capturing(self) -> bool:
        """Return whether work queued now is captured into a graph instead of run."""
        return False

    @abstractmethod
    def create_graph(self) -> Any:
        """Return an empty graph, or None without graphs. Capture and replay of None do nothing."""

    @abstractmethod
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """Return a context that records work into ``graph`` without running it; without graphs it does nothing."""

    @abstractmethod
    def replay_graph(self, graph: Any) -> None:
        """Run the captured work on the current values of its inputs."""

    # --- typed tensor constructors ----------------------------------------------------------------------------------

    BFloat16Tensor, ByteTensor, DoubleTensor, FloatTensor, HalfTensor, IntTensor, LongTensor = map(
        _constructor, ("bfloat16", "uint8", "float64", "float32", "float16", "int32", "int64")
    )

    # --- host memory ------------------------------------------------------------------------------------------------

    @abstractmethod
    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """Return a page-locked host tensor: a copy, or with ``make_copy=False`` a new one of that size and dtype.

        ``match_shape=False`` makes the new tensor one-dimensional. If nothing can be page-locked, the result is
        pageable and ``is_pinned`` returns False for it.
        """

    @abstractmethod
    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """Return an uninitialized page-locked host tensor. Raises ValueError for a device other than the host."""

    @abstractmethod
    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return an uninitialized page-locked host tensor of the same shape, and by default of the same dtype."""

    @abstractmethod
    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's memory is page-locked; False for meta and fake tensors, which have no data."""

    @abstractmethod
    def unpin_memory(self, tensor: torch.Tensor) -> bool | None:
        """Release a page lock early. Returns True if it did, and None if torch owns the lock."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Register host memory with the device's runtime for asynchronous copies; return False if it needs none."""
        return False

    def unregister_host_memory(self, address: int) -> None:  # noqa: B027 - doing nothing is right by default
        """Undo ``register_host_memory``; raise if the runtime keeps the registration."""

    def pin_memory_alignment(self) -> int:
        """Return the alignment in bytes that ``register_host_memory`` needs; 1 means none."""
        return 1

    @abstractmethod
    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is on this kind of device; False for meta tensors."""

    # --- operator builders ------------------------------------------------------------------------------------------

    @abstractmethod
    def op_builder_dir(self) -> str:
        """Return the name of the importable module that holds the operator builders."""

    @abstractmethod
    def create_op_builder(self, class_name: str) -> Any:
        """Return an instance of ``get_op_builder(class_name)``."""

    @abstractmethod
    def get_op_builder(self, class_name: str) -> Any:
        """Return the builder class of that name. An unknown name gives an incompatible builder, never an exception."""

    @abstractmethod
    def build_extension(self) -> Any:
        """Return the setuptools command class that builds extensions for this device."""

    # --- environment and compilation --------------------------------------------------------------------------------

    @abstractmethod
    def export_envs(self) -> list[str]:
        """Return the prefixes of environment variables that a launcher passes to other hosts."""

    @abstractmethod
    def visible_devices_envs(self) -> list[str]:
        """Return the variables that limit the devices a process sees; at least one."""

    @abstractmethod
    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int]
    ) -> None:
        """Set each of ``visible_devices_envs`` in ``current_env`` to the comma-separated ids; change nothing else."""

    @abstractmethod
    def get_compile_backend(self) -> str:
        """Return the ``torch.compile`` backend to use."""

    @abstractmethod
    def set_compile_backend(self, backend: str) -> None:
        """Choose another registered backend. An unknown one raises ValueError and changes nothing."""


@dataclass(frozen=True)
class Member:
    """One member of the interface. ``optional`` members have a default in DeepSpeed's own base class."""

    name: str
    kind: str
    signature: inspect.Signature | None
    doc: str
    since: str = ""

    @property
    def optional(self) -> bool:
        return bool(self.since)


#: Members that DeepSpeed's base class implements itself, with the release that this table was checked against. An
#: accelerator for an older release may correctly lack them.
_CONCRETE_SINCE = dict.fromkeys(
    (
        "supports_nvtx_domain",
        "is_fp64_supported",
        "prefer_triton_grouped_mm",
        "is_current_stream_capturing",
        "pin_memory",
        "pin_empty",
        "pin_empty_like",
        "is_pinned",
        "unpin_memory",
        "register_host_memory",
        "unregister_host_memory",
        "pin_memory_alignment",
    ),
    "0.19.8",
)


def _member(name: str, value: object) -> Member:
    since = _CONCRETE_SINCE.get(name, "")
    if isinstance(value, property):
        return Member(name, "property", None, inspect.getdoc(value) or "", since)
    if callable(value):
        return Member(name, "method", inspect.signature(value), inspect.getdoc(value) or "", since)
    return Member(name, "property", None, "Whether profiler ranges distinguish domains.", since)


#: Every public member, in the order of the interface.
MEMBERS: tuple[Member, ...] = tuple(
    _member(name, value) for name, value in vars(Accelerator).items() if not name.startswith("_")
)
MEMBER_NAMES: frozenset[str] = frozenset(member.name for member in MEMBERS)

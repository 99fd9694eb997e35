"""The accelerator interface: every member of DeepSpeed's ``DeepSpeedAccelerator`` (0.19.8), typed, with its meaning.

Names, arguments and meaning are DeepSpeed's, so that its accelerators are subjects without an adapter and ours can
stand where DeepSpeed expects one. Each docstring states what a test can check. ``device_index=None`` always means
the current device, and an index that is given is honoured.
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


class MissingMember(AttributeError):
    """The accelerator has no such member. An incomplete subject is still a subject, so this becomes a verdict."""

    def __init__(self, member: str, subject: str) -> None:
        super().__init__(f"{subject} has no member {member!r}")
        self.member, self.subject = member, subject


def stands_for_nothing(builder: object) -> bool:
    """Whether an operator builder means that there is no such operator: None, or DeepSpeed's and our stand-in for one.

    DeepSpeed's stand-in says that it is compatible; only its name tells, and that loading it raises.
    """
    return builder is None or type(builder).__name__ == "NotImplementedBuilder"


class Accelerator(ABC):
    """What a device offers to a training engine."""

    #: Whether ``range_push`` and ``range_pop`` tell domains apart.
    supports_nvtx_domain: bool = False

    # --- execution model --------------------------------------------------------------------------------------------

    @abstractmethod
    def is_synchronized_device(self) -> bool:
        """True if every operation is complete when its call returns; then host clocks time it correctly."""

    @abstractmethod
    def use_host_timers(self) -> bool:
        """True if durations must be measured with the host's clock. Always true when ``Event`` is None."""

    @abstractmethod
    def resolves_data_dependency(self) -> bool:
        """True if operations run in program order across streams, so that callers may omit ``wait_stream``."""

    @abstractmethod
    def handles_memory_backpressure(self) -> bool:
        """True if queueing work blocks, instead of running out of memory, when too much is in flight."""

    # --- devices ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def device_name(self, device_index: int | None = None) -> str:
        """The device type without an index, ``type:index`` with one; ``torch.device`` accepts both."""

    @abstractmethod
    def device(self, device_index: int | None = None) -> torch.device:
        """A ``torch.device`` that carries the index asked for, or the current one."""

    @abstractmethod
    def set_device(self, device_index: int) -> None:
        """Make a device current for this thread. An index that does not exist raises, and changes nothing."""

    @abstractmethod
    def current_device(self) -> int:
        """The index of the current device, as an int."""

    @abstractmethod
    def current_device_name(self) -> str:
        """``type:index`` of the current device."""

    @abstractmethod
    def device_count(self) -> int:
        """How many devices this process can address. Positive if ``is_available()``, and stable."""

    @abstractmethod
    def synchronize(self, device_index: int | None = None) -> None:
        """Block until everything queued on the device is complete."""

    # --- random numbers ---------------------------------------------------------------------------------------------

    @abstractmethod
    def random(self) -> Any:
        """The module that holds the device's random functions."""

    @abstractmethod
    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Restore a state that ``get_rng_state`` gave: the numbers drawn after it repeat, bit for bit."""

    @abstractmethod
    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """The generator's state, a uint8 host tensor. Asking does not advance the generator."""

    @abstractmethod
    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator: equal seeds repeat, different ones differ."""

    @abstractmethod
    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""

    @abstractmethod
    def initial_seed(self) -> int:
        """The seed of the current device's generator."""

    @abstractmethod
    def default_generator(self, device_index: int | None) -> torch.Generator:
        """The device's own generator; ``default_generator(i).get_state()`` equals ``get_rng_state(i)``."""

    # --- streams and events -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def Stream(self) -> Any:
        """The stream class, or None where there are no streams."""

    @abstractmethod
    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which ``stream`` is current. ``None`` gives a context that does nothing."""

    @abstractmethod
    def current_stream(self, device_index: int | None = None) -> Any:
        """The current stream; None exactly if ``Stream`` is None."""

    @abstractmethod
    def default_stream(self, device_index: int | None = None) -> Any:
        """The stream that is current before any other is entered; None exactly if ``Stream`` is None."""

    @property
    @abstractmethod
    def Event(self) -> Any:
        """The event class, or None; None implies ``use_host_timers()``."""

    # --- memory, in bytes -------------------------------------------------------------------------------------------

    @abstractmethod
    def empty_cache(self) -> None:
        """Give unused cached memory back. Live tensors keep their values; reserved memory does not grow."""

    @abstractmethod
    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes of live tensors, as the allocator counts them. Without counters, the nearest estimate."""

    @abstractmethod
    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The largest ``memory_allocated`` since the last reset."""

    @abstractmethod
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Let the peak of allocated memory start again at its current value."""

    @abstractmethod
    def memory_cached(self, device_index: int | None = None) -> int:
        """An older name of ``memory_reserved``."""

    @abstractmethod
    def max_memory_cached(self, device_index: int | None = None) -> int:
        """An older name of ``max_memory_reserved``."""

    @abstractmethod
    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Let the peak of reserved memory start again at its current value."""

    @abstractmethod
    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        """The allocator's counters; ``allocated_bytes.all.current`` equals ``memory_allocated``.

        An empty dictionary says cleanly that the allocator counts nothing.
        """

    @abstractmethod
    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Let every peak start again at its current value."""

    @abstractmethod
    def memory_reserved(self, device_index: int | None = None) -> int:
        """Bytes taken from the device: allocated and cached ones."""

    @abstractmethod
    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """The largest ``memory_reserved`` since the last reset."""

    @abstractmethod
    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes the device has; positive."""

    @abstractmethod
    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes this process could still allocate; at most ``total_memory``, less after an allocation."""

    # --- data types -------------------------------------------------------------------------------------------------

    @abstractmethod
    def is_bf16_supported(self) -> bool:
        """True exactly if ``torch.bfloat16`` is in ``supported_dtypes()``."""

    @abstractmethod
    def is_fp16_supported(self) -> bool:
        """True exactly if ``torch.float16`` is in ``supported_dtypes()``."""

    def is_fp64_supported(self) -> bool:
        """Whether float64 tensors can be computed with. True unless an accelerator says otherwise."""
        return True

    @abstractmethod
    def supported_dtypes(self) -> list[torch.dtype]:
        """The floating-point dtypes models can train in; float32 is always one of them."""

    # --- software around the device ---------------------------------------------------------------------------------

    @abstractmethod
    def is_available(self) -> bool:
        """Whether a device of this kind is usable here."""

    @abstractmethod
    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Open a named range for profilers. Nests, never raises, changes no result."""

    @abstractmethod
    def range_pop(self, domain: str | None = None) -> Any:
        """Close the innermost range. Never raises, even if none is open."""

    @abstractmethod
    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Run ``callback`` now, or as soon as the device is initialised; never drop it."""

    @abstractmethod
    def communication_backend_name(self) -> str | None:
        """What ``torch.distributed.init_process_group`` takes; None where there is none."""

    @abstractmethod
    def is_triton_supported(self) -> bool:
        """Whether Triton kernels compile and run."""

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether a Triton grouped matrix product beats ``torch._grouped_mm`` here."""
        return False

    # --- graphs -----------------------------------------------------------------------------------------------------

    def is_current_stream_capturing(self) -> bool:
        """Whether work queued now is captured into a graph instead of run."""
        return False

    @abstractmethod
    def create_graph(self) -> Any:
        """An empty graph; None where there are none, and then capture and replay do nothing."""

    @abstractmethod
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """A context that records work into ``graph`` without running it; without graphs, one that does nothing."""

    @abstractmethod
    def replay_graph(self, graph: Any) -> None:
        """Run the captured work on the current values of its inputs."""

    # --- typed tensor constructors ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def BFloat16Tensor(self) -> Any:
        """Called with a list, builds a bfloat16 tensor on the device."""

    @property
    @abstractmethod
    def ByteTensor(self) -> Any:
        """Called with a list, builds a uint8 tensor on the device."""

    @property
    @abstractmethod
    def DoubleTensor(self) -> Any:
        """Called with a list, builds a float64 tensor on the device."""

    @property
    @abstractmethod
    def FloatTensor(self) -> Any:
        """Called with a list, builds a float32 tensor on the device."""

    @property
    @abstractmethod
    def HalfTensor(self) -> Any:
        """Called with a list, builds a float16 tensor on the device."""

    @property
    @abstractmethod
    def IntTensor(self) -> Any:
        """Called with a list, builds an int32 tensor on the device."""

    @property
    @abstractmethod
    def LongTensor(self) -> Any:
        """Called with a list, builds an int64 tensor on the device."""

    # --- host memory ------------------------------------------------------------------------------------------------

    @abstractmethod
    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """A page-locked host tensor: a copy, or with ``make_copy=False`` a fresh one of that size and dtype.

        ``match_shape=False`` makes the fresh tensor one-dimensional. Where nothing can be page-locked the result is
        pageable, and ``is_pinned`` says so.
        """

    @abstractmethod
    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """An uninitialised page-locked host tensor; a device other than the host is a ValueError."""

    @abstractmethod
    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """An uninitialised page-locked host tensor of the same shape, and of the same dtype unless given."""

    @abstractmethod
    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory is page-locked; False for meta and fake tensors, whose data is not touched."""

    @abstractmethod
    def unpin_memory(self, tensor: torch.Tensor) -> bool | None:
        """Release a page lock early: True if it did, None where torch owns the lock."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Make host memory known to the device's runtime, for asynchronous copies; False if it has no use for it."""
        return False

    def unregister_host_memory(self, address: int) -> None:  # noqa: B027 - doing nothing is right by default
        """Undo ``register_host_memory``; raises if the runtime keeps the registration."""

    def pin_memory_alignment(self) -> int:
        """The alignment in bytes that ``register_host_memory`` needs; 1 means none."""
        return 1

    @abstractmethod
    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on this kind of device. False for meta tensors."""

    # --- operator builders ------------------------------------------------------------------------------------------

    @abstractmethod
    def op_builder_dir(self) -> str:
        """The importable module that holds the operator builders."""

    @abstractmethod
    def create_op_builder(self, class_name: str) -> Any:
        """An instance of ``get_op_builder(class_name)``."""

    @abstractmethod
    def get_op_builder(self, class_name: str) -> Any:
        """The builder class of that name; for an unknown name one that is not compatible, never an exception."""

    @abstractmethod
    def build_extension(self) -> Any:
        """The setuptools command class that builds extensions for this device."""

    # --- environment and compilation --------------------------------------------------------------------------------

    @abstractmethod
    def export_envs(self) -> list[str]:
        """Prefixes of the environment variables a launcher passes on to other hosts."""

    @abstractmethod
    def visible_devices_envs(self) -> list[str]:
        """The variables that limit which devices a process sees; at least one."""

    @abstractmethod
    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int]
    ) -> None:
        """Write the ids, comma-separated, into ``current_env`` for each of ``visible_devices_envs``; nowhere else."""

    @abstractmethod
    def get_compile_backend(self) -> str:
        """The ``torch.compile`` backend to use."""

    @abstractmethod
    def set_compile_backend(self, backend: str) -> None:
        """Use another registered backend; an unknown one is a ValueError and leaves the old one."""


@dataclass(frozen=True)
class Member:
    """One member of the interface. ``optional`` ones have a default in DeepSpeed's own base class."""

    name: str
    kind: str
    signature: inspect.Signature | None
    doc: str
    since: str = ""

    @property
    def optional(self) -> bool:
        return bool(self.since)


#: Members that DeepSpeed's base class implements itself, with the release this table was checked against: an
#: accelerator written for an older release may lack them without being wrong about it.
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
    return Member(name, "property", None, "Whether profiler ranges tell domains apart.", since)


#: Every public member, in the order of the interface.
MEMBERS: tuple[Member, ...] = tuple(
    _member(name, value) for name, value in vars(Accelerator).items() if not name.startswith("_")
)
MEMBER_NAMES: frozenset[str] = frozenset(member.name for member in MEMBERS)

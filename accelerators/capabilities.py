"""Capability vocabulary: one documented, typed constant for each observable behavior.

A capability names behavior that a case can observe from outside. A *cell* is a capability, an operator or a workload,
together with the dtype and mode of the claim. Claims are positive lists; "everything except" cannot be claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from conformance.base.errors import UnknownName


class Mode(Enum):
    """Mode of a claim: training includes gradients, inference does not."""

    INFERENCE = "inference"
    TRAINING = "training"


#: Dtype names that a declaration may use, in the order of the matrix.
DTYPES: Final[tuple[str, ...]] = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "complex64",
    "complex128",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
)
#: Families of cells with name, dtype and mode: PyTorch's operators, models, and kernels that PyTorch lacks.
FAMILIES: Final[tuple[str, ...]] = ("operators", "workloads", "kernels")
FLOATING_DTYPES: Final = frozenset({"float32", "float16", "bfloat16", "float64"})
DIFFERENTIABLE_DTYPES: Final = FLOATING_DTYPES | {"complex64", "complex128"}


@dataclass(frozen=True, order=True)
class Cell:
    """The object of one claim: ``subject × dtype × mode``.

    ``subject`` is a capability name (``stream.order``), ``operators.<name>``, ``workloads.<name>``, or
    ``kernels.<name>``. In a declaration the subject may contain ``*`` (shell-style). ``dtype`` and ``mode`` are None
    where they have no meaning.
    """

    subject: str
    dtype: str | None = None
    mode: str | None = None

    def __str__(self) -> str:
        axes = "-".join(axis for axis in (self.dtype, self.mode) if axis)
        return f"{self.subject}[{axes}]" if axes else self.subject

    @property
    def is_pattern(self) -> bool:
        """Return whether the subject is a shell-style pattern."""
        return "*" in self.subject


@dataclass(frozen=True)
class Capability:
    """One observable behavior. A ``core`` capability cannot be declared unsupported or waived."""

    name: str
    doc: str
    core: bool = False

    @property
    def cell(self) -> Cell:
        """Return the cell of this capability without dtype and mode."""
        return Cell(self.name)

    def on(self, dtype: str, mode: str | None = None) -> Cell:
        """Return the cell of this capability for a dtype, and for a mode if one is given."""
        return Cell(self.name, dtype, mode)

    def __str__(self) -> str:
        return self.name


VOCABULARY: dict[str, Capability] = {}


def capability(name: str, doc: str, *, core: bool = False) -> Capability:
    """Define a capability and return it. Names are dotted, lower case, and unique."""
    if name in VOCABULARY:
        raise ValueError(f"capability {name!r} is defined twice")
    VOCABULARY[name] = Capability(name, doc, core)
    return VOCABULARY[name]


def find_capability(name: str) -> Capability:
    """Return the capability of that name; raise UnknownName with suggestions for an unknown one."""
    try:
        return VOCABULARY[name]
    except KeyError:
        raise UnknownName("capability", name, VOCABULARY, "see: conformance list --capabilities") from None


# --- mandatory core: cannot be declared unsupported ---------------------------------------------------------------
DEVICE = capability("device", "The device is named, counted, selected and reported consistently.", core=True)
MEMORY = capability("memory", "Tensors are allocated on the device, hold their values, and are freed.", core=True)
COPY = capability("copy", "Copies between host and device keep every bit.", core=True)
RNG = capability("rng", "Seeding the device generator makes random numbers repeatable.", core=True)
CHECKPOINT = capability(
    "checkpoint", "Device tensors survive torch.save and torch.load with values and dtype.", core=True
)
SYNCHRONIZE = capability("synchronize", "After synchronize() everything queued on the device is complete.", core=True)
DTYPE = capability("dtype", "Tensors of this dtype are stored, copied and cast without loss.")

# --- device ---------------------------------------------------------------------------------------------------------
DEVICE_INDEX = capability("device.index", "Device names and torch devices have the requested index.")
DEVICE_MULTIPLE = capability("device.multiple", "More than one device can be addressed from one process.")
DEVICE_VISIBILITY = capability(
    "device.visibility", "The visible-devices variable limits and reorders the devices of a new process."
)

# --- random numbers -------------------------------------------------------------------------------------------------
RNG_STATE = capability("rng.state", "A saved generator state repeats the same numbers.")
RNG_GENERATOR = capability(
    "rng.generator", "torch.Generator objects of this device draw independent, repeatable streams."
)
RNG_PER_DEVICE = capability("rng.per-device", "Each device index has a generator of its own.")

# --- execution model: the four flags --------------------------------------------------------------------------------
SYNCHRONOUS = capability("execution.synchronous", "An operation is complete when its call returns.")
HOST_TIMERS = capability("execution.host-timers", "Durations must be measured with the host's clock.")
ORDERED = capability("execution.ordered", "Operations run in program order, across streams as well.")
BACKPRESSURE = capability("execution.backpressure", "Queueing work blocks instead of running out of memory.")

# --- streams and events ---------------------------------------------------------------------------------------------
STREAM = capability("stream", "Streams can be created, entered, queried and restored.")
STREAM_ORDER = capability("stream.order", "wait_stream and wait_event order work between streams.")
STREAM_RECORD = capability("stream.record", "record_stream keeps memory alive until the other stream is done.")
EVENT = capability("event", "Events can be recorded, queried, waited for and synchronized.")
EVENT_TIMING = capability("event.timing", "Events measure the device time between two points, in milliseconds.")

# --- memory ---------------------------------------------------------------------------------------------------------
MEMORY_STATS = capability("memory.stats", "Allocated and reserved bytes follow the live tensors.")
MEMORY_PEAK = capability("memory.peak", "The peak covers short-lived allocations and can be reset.")
MEMORY_TOTAL = capability("memory.total", "Total and available memory are reported correctly.")
MEMORY_PINNED = capability("memory.pinned", "Host memory can be page-locked, and is_pinned reports it correctly.")
MEMORY_PINNED_ASYNC = capability(
    "memory.pinned-async",
    "Non-blocking copies from pinned memory do not block the host and are correct after a synchronize.",
)
MEMORY_OOM = capability(
    "memory.oom", "An allocation that is too large raises torch.OutOfMemoryError and leaves the device usable."
)

# --- graphs ---------------------------------------------------------------------------------------------------------
GRAPH_CAPTURE = capability(
    "graph.capture", "Work is captured without running, and replayed on the inputs' current values."
)
GRAPH_POOL = capability("graph.pool", "Graphs can share a memory pool.")

# --- torch.accelerator ----------------------------------------------------------------------------------------------
TORCH_ACCELERATOR = capability(
    "torch-accelerator", "torch.accelerator is this device: its functions act on it and report its state."
)
TORCH_ACCELERATOR_DTYPES = capability(
    "torch-accelerator.dtypes", "torch.accelerator.get_device_capability() names the dtypes that the device stores."
)
TORCH_ACCELERATOR_GRAPH = capability(
    "torch-accelerator.graph", "torch.accelerator.Graph captures work without running it, and replays it."
)

# --- precision ------------------------------------------------------------------------------------------------------
ACCUMULATE_WIDE = capability(
    "precision.accumulate-wide", "Sums and products of 16-bit numbers are accumulated in float32 or better."
)
MATMUL_FULL = capability("precision.matmul-full", "float32 matrix products keep float32 precision by default.")
DENORMALS = capability("precision.denormals", "Subnormal numbers are kept, not flushed to zero.")
DETERMINISTIC = capability("precision.deterministic", "In torch's deterministic mode, equal inputs give equal bits.")
INVARIANT_BATCH = capability(
    "invariance.batch", "The bits of a row do not depend on the number of rows, or on its place among them."
)
INVARIANT_CHUNK = capability(
    "invariance.chunk", "The bits of a row do not depend on the chunk in which it is computed, or on a cache."
)
INVARIANT_PADDING = capability("invariance.padding", "The bits of a row do not depend on the padding behind it.")
INVARIANT_STRIDE = capability("invariance.stride", "The bits of a row do not depend on the strides of its tensor.")
INVARIANT_STREAM = capability("invariance.stream", "The bits of a row do not depend on the stream and other work.")
INVARIANT_GRAPH = capability("invariance.graph", "A replayed graph gives the bits of the same calls without a graph.")
INVARIANT_COMPILE = capability(
    "invariance.compile", "The bits of a compiled operator do not depend on what is compiled beside it."
)
INVARIANT_RANK = capability(
    "invariance.rank", "The bits of a row do not depend on the number of ranks that compute it together."
)
INVARIANT_MODE = capability(
    "invariance.mode",
    "The declared mode takes effect: it changes bits, makes its claims true, and ends with its context.",
)
INVARIANT_RUN = capability("invariance.run", "A repeated call with the same rows gives the same bits.")
AUTOCAST = capability("autocast", "torch.autocast works for this device type.")

# --- software around the device -------------------------------------------------------------------------------------
RANGES = capability("ranges", "Profiler ranges nest, never raise, and change no result.")
DLPACK = capability("dlpack", "torch.from_dlpack shares the memory of a tensor on this device, in every layout.")
LAZY_CALL = capability("lazy-call", "A callback passed to lazy_call runs.")
TENSOR_TYPES = capability("tensor-types", "The typed constructors build tensors of their dtype on the device.")
OP_BUILDERS = capability("op-builders", "Operator builders are found by name and load.")
COMPILE = capability("compile", "torch.compile runs on the declared compile backend.")
COMM = capability("comm", "The declared communication backend initialises a process group.")
COMM_DTYPE = capability("comm.dtype", "Collectives carry tensors of this dtype.")
COMM_AVERAGE = capability("comm.average", "Reductions average: ReduceOp.AVG.")
COMM_BITWISE = capability("comm.bitwise", "Reductions combine integers bit by bit: BAND, BOR, BXOR.")
COMM_ROOTED = capability("comm.rooted", "One rank is the root of reduce, gather and scatter.")
COMM_ALL_TO_ALL = capability("comm.all-to-all", "Every rank exchanges parts with all others; the sizes may differ.")
COMM_P2P = capability("comm.point-to-point", "Two ranks send and receive single messages and batches.")
COMM_COALESCED = capability("comm.coalesced", "Several collectives start as one operation.")
COMM_DEATH = capability(
    "comm.death", "If a rank dies in a collective, the other ranks get an error within half a minute."
)
COMM_TAGS = capability("comm.tags", "A receive with a tag gets the message with that tag, in any order.")
COMM_SYMMETRIC = capability(
    "comm.symmetric-memory", "Ranks read and write each other's memory through torch.distributed._symmetric_memory."
)
TRITON = capability("triton", "Triton kernels compile and run.")
PROFILER = capability("profiler", "torch.profiler records activity on this device.")

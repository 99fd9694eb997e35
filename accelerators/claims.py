"""Words in which an accelerator states its capabilities, as sets that are joined with ``|``.

    capabilities=TORCH_BASE | {STREAM_ORDER} | dtypes("float32", "bfloat16") | lacks(TRITON, "no compiler yet", NOT_YET)

An element is a capability, a cell, a capability's name, or a *statement*: a cell with its claim. A capability or
cell on its own claims native support.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from conformance.accelerators import capabilities as vocabulary
from conformance.accelerators.capabilities import (
    DIFFERENTIABLE_DTYPES,
    DTYPES,
    VOCABULARY,
    Capability,
    Cell,
    Mode,
    find_capability,
)
from conformance.accelerators.declaration import Claim, Declaration, Detail, supported, unsupported
from conformance.errors import DeclarationError, UnknownName

NOT_YET: Final = Detail.NOT_YET
HARDWARE: Final = Detail.HARDWARE


@dataclass(frozen=True)
class Statement:
    """One cell and what is claimed for it."""

    cell: Cell
    claim: Claim


Element: TypeAlias = Capability | Cell | Statement | str
Capabilities: TypeAlias = frozenset[Element]

#: Dtypes in which the workloads are claimed as soon as the dtype is.
_WORKLOAD_DTYPES: Final = frozenset({"float32", "bfloat16"})
#: Dtypes in which PyTorch's operators, and so the reference of every kernel, compute as soon as the dtype is claimed.
_KERNEL_DTYPES: Final = frozenset({"float32", "float16", "bfloat16"})
_MODES: Final = tuple(mode.value for mode in Mode)

#: The operators in PyTorch's database that make or take a sparse tensor.
_ON_SPARSE_LAYOUTS: Final = ("to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm")

#: What every device that PyTorch drives offers.
TORCH_BASE: Final[Capabilities] = frozenset(
    {capability for capability in VOCABULARY.values() if capability.core}
    | {
        vocabulary.DEVICE_INDEX,
        vocabulary.RNG_STATE,
        vocabulary.RNG_GENERATOR,
        vocabulary.RANGES,
        vocabulary.LAZY_CALL,
        vocabulary.TENSOR_TYPES,
        vocabulary.OP_BUILDERS,
    }
)

#: Streams and events as CUDA's programming model has them.
STREAMS: Final[Capabilities] = frozenset(
    {
        vocabulary.STREAM,
        vocabulary.STREAM_ORDER,
        vocabulary.STREAM_RECORD,
        vocabulary.EVENT,
        vocabulary.EVENT_TIMING,
    }
)
#: A caching allocator that counts.
ALLOCATOR: Final[Capabilities] = frozenset(
    {vocabulary.MEMORY_STATS, vocabulary.MEMORY_PEAK, vocabulary.MEMORY_TOTAL, vocabulary.MEMORY_OOM}
)
#: What torch.distributed offers beyond reductions, broadcast and gathering for all.
ALL_COLLECTIVES: Final[Capabilities] = frozenset(
    {
        vocabulary.COMM_AVERAGE,
        vocabulary.COMM_ROOTED,
        vocabulary.COMM_ALL_TO_ALL,
        vocabulary.COMM_P2P,
    }
)
#: Page-locked host memory, and copies from it that run behind the host.
PINNING: Final[Capabilities] = frozenset({vocabulary.MEMORY_PINNED, vocabulary.MEMORY_PINNED_ASYNC})


def dtypes(*names: str, detail: Detail = Detail.NATIVE) -> Capabilities:
    """Claim dtypes: stored and cast, used by every operator, trained with where gradients exist, and in workloads."""
    cells = {cell for name in names for cell in _cells_of_dtype(_known_dtype(name))}
    referenced = {Cell("kernels.*", name, mode) for name in _KERNEL_DTYPES.intersection(names) for mode in _MODES}
    portable = Detail.EMULATED if detail is Detail.NATIVE else detail
    return frozenset(Statement(cell, supported(detail)) for cell in cells) | emulates(*referenced, detail=portable)


def kernels(*names: str, dtypes: Iterable[str], mode: Mode, detail: Detail = Detail.NATIVE) -> Capabilities:
    """Claim kernels by name, as more than their portable references: compiled for the device, or its vendor's own."""
    cells = {Cell(f"kernels.{name}", _known_dtype(dtype), mode.value) for name in names for dtype in dtypes}
    return frozenset(Statement(cell, supported(detail)) for cell in cells)


def _cells_of_dtype(name: str) -> set[Cell]:
    cells = {vocabulary.DTYPE.on(name), Cell("operators.*", name, Mode.INFERENCE.value)}
    if name in DIFFERENTIABLE_DTYPES:
        cells.add(Cell("operators.*", name, Mode.TRAINING.value))
    if name in _WORKLOAD_DTYPES:
        cells |= {Cell("workloads.*", name, mode) for mode in _MODES}
    return cells


def stores(*names: str) -> Capabilities:
    """Claim that these dtypes are stored, copied and cast, and nothing more: no operator works in them."""
    return frozenset(Statement(vocabulary.DTYPE.on(_known_dtype(name)), supported()) for name in names)


def accumulates_wide(*names: str) -> Capabilities:
    """Claim that sums and products of these 16-bit dtypes are accumulated in float32 or better."""
    cells = {vocabulary.ACCUMULATE_WIDE.on(_known_dtype(name)) for name in names}
    return frozenset(Statement(cell, supported()) for cell in cells)


def communicates(*names: str) -> Capabilities:
    """Claim a communication backend whose collectives carry these dtypes."""
    cells = {vocabulary.COMM.cell, *(vocabulary.COMM_DTYPE.on(_known_dtype(name)) for name in names)}
    return frozenset(Statement(cell, supported()) for cell in cells)


def lacks(what: Capability | Cell, reason: str, detail: Detail = Detail.HARDWARE) -> Capabilities:
    """Claim that something is not there, and why."""
    return frozenset({Statement(_cell(what), unsupported(reason, detail))})


def strided_only(*names: str) -> Capabilities:
    """Claim that there are no sparse layouts: what needs one is missing in these dtypes."""
    cells = (
        Cell(f"operators.{operator}", _known_dtype(name), mode)
        for operator in _ON_SPARSE_LAYOUTS
        for name in names
        for mode in (_MODES if name in DIFFERENTIABLE_DTYPES else (Mode.INFERENCE.value,))
    )
    reason = "the device has strided tensors only"
    return frozenset().union(*(lacks(cell, reason, NOT_YET) for cell in cells))


def emulates(*what: Capability | Cell, detail: Detail = Detail.EMULATED) -> Capabilities:
    """Claim support that is emulated on the device, or computed on the host."""
    return frozenset(Statement(_cell(one), supported(detail)) for one in what)


def declaration_of(elements: Iterable[Element]) -> Declaration:
    """The declaration that a set of elements states; contradictions and unknown names are DeclarationErrors."""
    if isinstance(elements, str | bytes | Mapping) or not isinstance(elements, Iterable):
        raise DeclarationError(
            f"`capabilities` is a {type(elements).__name__}; make it a set of capabilities, cells, statements or names."
        )
    return Declaration.of(_statement(element) for element in elements)


def dtypes_in(elements: Iterable[Element]) -> tuple[str, ...]:
    """The dtypes a set of elements claims to compute with, in the order of the matrix; not those it only stores."""
    declaration = declaration_of(elements)
    return tuple(name for name in DTYPES if declaration.supports(Cell("operators.*", name, Mode.INFERENCE.value)))


def _statement(element: Element) -> tuple[Cell, Claim]:
    if isinstance(element, Statement):
        return element.cell, element.claim
    return _cell(element), supported()


def _cell(what: Element) -> Cell:
    if isinstance(what, Cell):
        return what
    if isinstance(what, Capability):
        return what.cell
    if isinstance(what, str):
        return parse_cell(what)
    raise DeclarationError(f"{what!r} in `capabilities` is no capability, cell, statement or name.")


def parse_cell(text: str) -> Cell:
    """The cell written ``subject``, ``subject[dtype]``, ``subject[mode]`` or ``subject[dtype-mode]``."""
    subject, bracket, rest = text.partition("[")
    if not bracket:
        return _named(Cell(subject))
    if not rest.endswith("]"):
        raise DeclarationError(f"{text!r} opens a bracket and does not close it; write subject[dtype-mode].")
    first, _, second = rest[:-1].partition("-")
    if first in _MODES and not second:
        return _named(Cell(subject, None, first))
    if second and second not in _MODES:
        raise _unknown("mode", second, _MODES)
    return _named(Cell(subject, _known_dtype(first), second or None))


def _named(cell: Cell) -> Cell:
    if cell.subject.partition(".")[0] in vocabulary.FAMILIES and "." in cell.subject:
        return cell
    try:
        find_capability(cell.subject)
    except UnknownName as error:
        raise DeclarationError(str(error)) from None
    return cell


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise _unknown("dtype", name, DTYPES)
    return name


def _unknown(kind: str, name: str, known: Iterable[str]) -> DeclarationError:
    return DeclarationError(str(UnknownName(kind, name, known)))


#: This project's compiled kernels for host memory: they are there whatever the accelerator is.
COMPILED_FOR_HOST: Final[Capabilities] = kernels(
    "adam_update", "adagrad_update", "lion_update", dtypes=sorted(_KERNEL_DTYPES), mode=Mode.TRAINING
) | kernels("adam_rollback", dtypes=["float32"], mode=Mode.TRAINING)

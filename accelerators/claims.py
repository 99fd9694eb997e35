"""Functions and sets for the ``capabilities`` of an accelerator, to be joined with ``|``.

    capabilities=TORCH_BASE | {STREAM_ORDER} | dtypes("float32", "bfloat16") | lacks(TRITON, "no compiler yet", NOT_YET)

An element is a capability, a cell, a capability's name, or a *statement*: a cell with its claim. A capability or
cell without a claim means native support.
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
from conformance.accelerators.declaration import Claim, Declaration, Detail, State, supported, unsupported
from conformance.accelerators.subjects import check_subject
from conformance.base.errors import DeclarationError, UnknownName

NOT_YET: Final = Detail.NOT_YET
HARDWARE: Final = Detail.HARDWARE


@dataclass(frozen=True)
class Statement:
    """One cell with its claim."""

    cell: Cell
    claim: Claim


Element: TypeAlias = Capability | Cell | Statement | str
Capabilities: TypeAlias = frozenset[Element]

#: Dtypes whose claim includes the workloads.
_WORKLOAD_DTYPES: Final = frozenset({"float32", "bfloat16"})
#: Dtypes whose claim includes the kernels: the reference of every kernel uses PyTorch's operators in that dtype.
_KERNEL_DTYPES: Final = frozenset({"float32", "float16", "bfloat16"})
_MODES: Final = tuple(mode.value for mode in Mode)
_INFERENCE: Final = Mode.INFERENCE.value

#: Operators in PyTorch's database that return or take a sparse tensor.
_ON_SPARSE_LAYOUTS: Final = ("to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm")

#: Capabilities of every device that PyTorch drives.
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
#: A caching allocator with counters.
ALLOCATOR: Final[Capabilities] = frozenset(
    {vocabulary.MEMORY_STATS, vocabulary.MEMORY_PEAK, vocabulary.MEMORY_TOTAL, vocabulary.MEMORY_OOM}
)
#: Collectives of torch.distributed besides all-reduce, broadcast and all-gather.
ALL_COLLECTIVES: Final[Capabilities] = frozenset(
    {
        vocabulary.COMM_AVERAGE,
        vocabulary.COMM_ROOTED,
        vocabulary.COMM_ALL_TO_ALL,
        vocabulary.COMM_P2P,
    }
)
#: Page-locked host memory, and asynchronous copies from it.
PINNING: Final[Capabilities] = frozenset({vocabulary.MEMORY_PINNED, vocabulary.MEMORY_PINNED_ASYNC})


def dtypes(*names: str, detail: Detail = Detail.NATIVE) -> Capabilities:
    """Claim dtypes for storage, casts, every operator, training where gradients exist, workloads and kernels."""
    cells = {cell for name in names for cell in _cells_of_dtype(_known_dtype(name))}
    referenced = {Cell("kernels.*", name, mode) for name in _KERNEL_DTYPES.intersection(names) for mode in _MODES}
    # The portable kernels are composed of PyTorch operators. On a native device that is an emulation.
    portable = Detail.EMULATED if detail is Detail.NATIVE else detail
    return frozenset(Statement(cell, supported(detail)) for cell in cells) | emulates(*referenced, detail=portable)


def kernels(*names: str, dtypes: Iterable[str], mode: Mode, detail: Detail = Detail.NATIVE) -> Capabilities:
    """Claim kernels by name that are better than the portable ones: compiled for the device, or the vendor's own."""
    cells = {Cell(f"kernels.{name}", _known_dtype(dtype), mode.value) for name in names for dtype in dtypes}
    return frozenset(Statement(cell, supported(detail)) for cell in cells)


def _cells_of_dtype(name: str) -> set[Cell]:
    """Return the cells that a claim of the whole dtype covers."""
    cells = {vocabulary.DTYPE.on(name), Cell("operators.*", name, Mode.INFERENCE.value)}
    if name in DIFFERENTIABLE_DTYPES:
        cells.add(Cell("operators.*", name, Mode.TRAINING.value))
    if name in _WORKLOAD_DTYPES:
        cells |= {Cell("workloads.*", name, mode) for mode in _MODES}
    return cells


def stores(*names: str) -> Capabilities:
    """Claim that these dtypes are stored, copied and cast only; no operator computes in them."""
    return frozenset(Statement(vocabulary.DTYPE.on(_known_dtype(name)), supported()) for name in names)


def accumulates_wide(*names: str) -> Capabilities:
    """Claim that sums and products of these 16-bit dtypes are accumulated in float32 or better."""
    cells = {vocabulary.ACCUMULATE_WIDE.on(_known_dtype(name)) for name in names}
    return frozenset(Statement(cell, supported()) for cell in cells)


def invariant(surrounding: Capability, *names: str) -> Capabilities:
    """Claim that the bits of a row in these dtypes do not depend on a surrounding, such as ``INVARIANT_BATCH``."""
    return frozenset(Statement(surrounding.on(_known_dtype(name)), supported()) for name in names)


def depends(surrounding: Capability, *names: str, reason: str) -> Capabilities:
    """Claim that the bits of a row in these dtypes depend on a surrounding, with the reason."""
    return frozenset().union(*(lacks(surrounding.on(_known_dtype(name)), reason, NOT_YET) for name in names))


def communicates(*names: str, known: str = "") -> Capabilities:
    """Claim a communication backend with collectives in these dtypes. ``known`` is a known fault of the backend.

    The claim stands, and the cases that show the fault fail: see ``waivers``.
    """
    cells = {vocabulary.COMM_DTYPE.on(_known_dtype(name)) for name in names}
    backend = Statement(vocabulary.COMM.cell, supported(reason=known))
    return frozenset({backend, *(Statement(cell, supported()) for cell in cells)})


def lacks(target: Capability | Cell, reason: str, detail: Detail = Detail.HARDWARE) -> Capabilities:
    """Claim that a capability or cell is unsupported, with the reason."""
    return frozenset({Statement(_cell(target), unsupported(reason, detail))})


def strided_only(*names: str) -> Capabilities:
    """Claim that operators with sparse layouts are unsupported in these dtypes."""
    cells = (
        Cell(f"operators.{operator}", _known_dtype(name), mode)
        for operator in _ON_SPARSE_LAYOUTS
        for name in names
        for mode in (_MODES if name in DIFFERENTIABLE_DTYPES else (Mode.INFERENCE.value,))
    )
    reason = "the device has strided tensors only"
    return frozenset().union(*(lacks(cell, reason, NOT_YET) for cell in cells))


def operators_without(
    dtypes: Iterable[str], operators: Iterable[str], reason: str, *, modes: Iterable[str] = _MODES
) -> Capabilities:
    """Claim that these operators are unsupported in these dtypes, in every mode that the dtype has."""
    cells = {
        Cell(f"operators.{operator}", _known_dtype(name), mode)
        for name in dtypes
        for operator in operators
        for mode in modes
        if mode == Mode.INFERENCE.value or name in DIFFERENTIABLE_DTYPES
    }
    return frozenset(Statement(cell, unsupported(reason, Detail.NOT_YET)) for cell in cells)


def emulates(*targets: Capability | Cell, detail: Detail = Detail.EMULATED) -> Capabilities:
    """Claim support that is emulated on the device, or with ``Detail.HOST`` computed on the host."""
    return frozenset(Statement(_cell(target), supported(detail)) for target in targets)


def declaration_of(elements: Iterable[Element]) -> Declaration:
    """Return the declaration of a set of elements; raise DeclarationError for contradictions and unknown names."""
    # A string is iterable too, and each of its letters would be taken for a name.
    if isinstance(elements, str | bytes | Mapping) or not isinstance(elements, Iterable):
        raise DeclarationError(
            f"`capabilities` is a {type(elements).__name__}; make it a set of capabilities, cells, statements or names."
        )
    return Declaration.of(_known_statement(element) for element in elements)


def dtypes_in(elements: Iterable[Element]) -> tuple[str, ...]:
    """Return the dtypes in which the elements claim computation, in the order of the matrix.

    A dtype is claimed by a pattern for all operators, or by single operators.
    """
    claimed = {
        cell.dtype
        for cell, claim in declaration_of(elements).cells.items()
        if claim.state is State.SUPPORTED and cell.subject.startswith("operators.") and cell.mode == _INFERENCE
    }
    return tuple(name for name in DTYPES if name in claimed)


def _known_statement(element: Element) -> tuple[Cell, Claim]:
    """Return the cell and the claim of an element; raise DeclarationError if the cell is of an unknown operator."""
    cell, claim = _statement(element)
    check_subject(cell.subject)
    return cell, claim


def _statement(element: Element) -> tuple[Cell, Claim]:
    if isinstance(element, Statement):
        return element.cell, element.claim
    return _cell(element), supported()


def _cell(element: Element) -> Cell:
    """Return the cell that an element of ``capabilities`` names. Raises ``DeclarationError`` for other types."""
    if isinstance(element, Cell):
        return element
    if isinstance(element, Capability):
        return element.cell
    if isinstance(element, str):
        return parse_cell(element)
    raise DeclarationError(f"{element!r} in `capabilities` is not a capability, cell, statement or name.")


def parse_cell(text: str) -> Cell:
    """Return the cell written as ``subject``, ``subject[dtype]``, ``subject[mode]`` or ``subject[dtype-mode]``."""
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
    """Return the cell if its capability is known. Members of families are checked where they are declared.

    A report names operators of the torch that it was made with. They are read here, and need not exist in this one.
    """
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


#: This project's compiled kernels for host memory. They work with every accelerator.
COMPILED_FOR_HOST: Final[Capabilities] = kernels(
    "adam_update", "adagrad_update", "lion_update", dtypes=sorted(_KERNEL_DTYPES), mode=Mode.TRAINING
) | kernels("adam_rollback", dtypes=["float32"], mode=Mode.TRAINING)

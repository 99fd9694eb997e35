"""The lines of a backend file that declares what a first declaration does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from conformance.accelerators import capabilities as vocabulary
from conformance.accelerators import claims
from conformance.accelerators.autoload import entry_points
from conformance.accelerators.capabilities import DIFFERENTIABLE_DTYPES, DTYPES, VOCABULARY, Cell, Mode
from conformance.accelerators.claims import Capabilities
from conformance.accelerators.declaration import Declaration, Detail, State
from conformance.cli.claims_text import declaration_of_cells
from conformance.reports.model import DeclaredCell, Report

#: Sets that are written as one word when all of their members work.
_SETS = ("STREAMS", "ALLOCATOR", "PINNING")
#: Fields of a backend that declare these themselves.
_FLAGS = {
    "execution.synchronous": "synchronized",
    "execution.host-timers": "host_timers",
    "execution.ordered": "ordered",
    "execution.backpressure": "backpressure",
}
_MODES = tuple(mode.value for mode in Mode)


def backend_lines(name: str, report: Report, cells: Iterable[DeclaredCell]) -> list[str]:
    """A file ``NAME_accelerator.py``, to be read and completed."""
    declaration = declaration_of_cells(cells)
    declared = list(_declared(declaration))
    used = sorted({word for line in declared for word in _imported(line)})
    collectives = report.accelerator.communication_backend
    return [
        f"# {name}_accelerator.py – complete it, and keep exceptions of operators in {name}_accelerator.toml beside it",
        "from conformance.accelerators import capabilities as can",
        f"from conformance.accelerators.claims import {', '.join(used)}",
        "from conformance.accelerators.torch_accelerator import TorchAccelerator",
        "",
        f"{name.upper()} = TorchAccelerator(",
        f'    name="{name}",',
        '    vendor="…",',
        *_package(name),
        *([f'    collectives={{"linux": {json.dumps(collectives)}}},'] if collectives.isidentifier() else []),
        *(f"    {field}={claimed}," for field, claimed in _flags(declaration)),
        *(f"    {line}=False," for line in _absent(declaration)),
        "    capabilities=TORCH_BASE",
        *(f"    | {line}" for line in declared),
        ")",
    ]


def _flags(declaration: Declaration) -> Iterator[tuple[str, bool]]:
    """Yield the execution flags that are claimed or denied; an undeclared flag is left out."""
    for cell, field in _FLAGS.items():
        state = declaration.claim(Cell(cell)).state
        if state is not State.UNDECLARED:
            yield field, state is State.SUPPORTED


def _package(name: str) -> list[str]:
    points = entry_points(f"torch_{name}") or entry_points(name)
    return [f'    package="{points[0].value.partition(":")[0]}",'] if points else []


def _absent(declaration: Declaration) -> Iterator[str]:
    for cell, field in (("stream", "streams"), ("event", "events"), ("memory.pinned", "pins")):
        if declaration.claim(Cell(cell)).state is State.UNSUPPORTED:
            yield field


def _imported(line: str) -> Iterator[str]:
    words = ("TORCH_BASE", "NOT_YET", "accumulates_wide", "dtypes", "emulates", "lacks", "stores", *_SETS)
    yield "TORCH_BASE"
    yield from (
        word for word in words if line.startswith((f"{word}(", f"{word} ")) or line == word or f", {word})" in line
    )


def _declared(declaration: Declaration) -> Iterator[str]:
    """The operands of ``|``, one a line: sets, single capabilities, dtypes, and what is missing."""
    claimed = {name for name in VOCABULARY if declaration.claim(Cell(name)).detail is Detail.NATIVE}
    left = claimed - _names(claims.TORCH_BASE) - _FLAGS.keys()
    for word in _SETS:
        members = _names(getattr(claims, word))
        if members <= left:
            left -= members
            yield word
    if left:
        yield "{" + ", ".join(f"can.{_constant(name)}" for name in VOCABULARY if name in left) + "}"
    yield from _dtypes(declaration)
    for name in VOCABULARY:
        claim = declaration.claim(Cell(name))
        if claim.state is State.UNSUPPORTED and name not in _FLAGS:
            yield f"lacks(can.{_constant(name)}, {json.dumps(claim.reason, ensure_ascii=False)}, NOT_YET)"


def _dtypes(declaration: Declaration) -> Iterator[str]:
    stored = [name for name in DTYPES if declaration.supports(vocabulary.DTYPE.on(name))]
    full = [name for name in stored if all(declaration.supports(cell) for cell in _operators(name))]
    wide = [name for name in DTYPES if declaration.supports(vocabulary.ACCUMULATE_WIDE.on(name))]
    for word, names in (
        ("dtypes", full),
        ("stores", [name for name in stored if name not in full]),
        ("accumulates_wide", wide),
    ):
        if names:
            yield f"{word}({', '.join(map(json.dumps, names))})"


def _operators(dtype: str) -> list[Cell]:
    modes = _MODES if dtype in DIFFERENTIABLE_DTYPES else (Mode.INFERENCE.value,)
    return [Cell("operators.*", dtype, mode) for mode in modes]


def _names(elements: Capabilities) -> set[str]:
    return {str(element) for element in elements}


def _constant(name: str) -> str:
    return next(word for word, value in vars(vocabulary).items() if value is VOCABULARY[name])

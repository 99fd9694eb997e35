"""Text of a backend file that declares the same as a first declaration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from conformance.accelerators import capabilities as vocabulary
from conformance.accelerators import claims
from conformance.accelerators.capabilities import DIFFERENTIABLE_DTYPES, DTYPES, VOCABULARY, Cell, Mode, find_capability
from conformance.accelerators.claims import Capabilities
from conformance.accelerators.declaration import Declaration, Detail, State
from conformance.accelerators.sources import packages_of
from conformance.cli.claims_text import declaration_of_cells
from conformance.reports.model import DeclaredCell, Report

#: Sets of capabilities that are written by name when every member is claimed.
_SETS = ("STREAMS", "ALLOCATOR", "PINNING")
#: Capabilities that a backend declares with a field of its own, and that field.
_FLAGS = {
    "execution.synchronous": "synchronized",
    "execution.host-timers": "host_timers",
    "execution.ordered": "ordered",
    "execution.backpressure": "backpressure",
}
_MODES = tuple(mode.value for mode in Mode)


def backend_lines(name: str, report: Report, cells: Iterable[DeclaredCell], package: str = "") -> list[str]:
    """Return the lines of a file ``NAME_accelerator.py``, for the vendor to review and complete.

    ``package`` registers the device; if it is empty, the package is found by the name of the device.
    """
    declaration = declaration_of_cells(cells)
    declared = list(_declared(declaration))
    imported = sorted({"TORCH_BASE", *(name for line in declared for name in _imported(line))})
    by_process = _counts_none(declaration)
    collectives = report.accelerator.communication_backend
    return [
        f"# {name}_accelerator.py – complete it; exceptions for operators go into {name}_accelerator.toml next to it",
        "from conformance.accelerators import capabilities as can",
        f"from conformance.accelerators.claims import {', '.join(imported)}",
        *(["from conformance.accelerators.memory import ProcessMemory"] if by_process else []),
        "from conformance.accelerators.torch_accelerator import TorchAccelerator",
        "",
        f"{name.upper()} = TorchAccelerator(",
        f'    name="{name}",',
        '    vendor="…",',
        _package(name, package),
        *([f'    collectives={{"linux": {json.dumps(collectives)}}},'] if collectives.isidentifier() else []),
        *(f"    {field}=True," for field in _flags(declaration)),
        *(f"    {field}=False," for field in _absent(declaration)),
        *([f"    memory=ProcessMemory(),  # torch.{name} counts no bytes: those of the process"] if by_process else []),
        f"    capabilities=TORCH_BASE{_without(declaration)}",
        *(f"    | {line}" for line in declared),
        ")",
    ]


def _without(declaration: Declaration) -> str:
    """Return the subtraction of the basic capabilities that the device does not show. The core always runs."""
    absent = [
        f"can.{_constant(name)}"
        for name in VOCABULARY
        if name in _names(claims.TORCH_BASE)
        and not find_capability(name).core
        and declaration.claim(Cell(name)).state is not State.SUPPORTED
    ]
    return f" - {{{', '.join(absent)}}}" if absent else ""


def _flags(declaration: Declaration) -> list[str]:
    """Return the execution flags that the device shows. The others say nothing: a class without them answers False."""
    return [field for cell, field in _FLAGS.items() if declaration.supports(Cell(cell))]


def _counts_none(declaration: Declaration) -> bool:
    """Return whether the device's module counts no bytes. DeepSpeed's interface asks every device for them."""
    return declaration.claim(Cell("memory.stats")).state is State.UNSUPPORTED


def _package(name: str, known: str) -> str:
    """Return the line of the package whose import registers the device. Without it, the file cannot load."""
    packages = [known] if known else packages_of(name)
    if packages:
        return f"    package={json.dumps(packages[0])},"
    return f'    package="",  # write here the package whose import registers torch.{name}; empty if torch itself does'


def _absent(declaration: Declaration) -> Iterator[str]:
    """Yield the fields that are True by default and have to be False for this device."""
    for cell, field in (("stream", "streams"), ("event", "events"), ("memory.pinned", "pins")):
        if declaration.claim(Cell(cell)).state is State.UNSUPPORTED:
            yield field


def _imported(line: str) -> Iterator[str]:
    """Yield the names of ``accelerators.claims`` that an operand of ``|`` uses."""
    importable = ("TORCH_BASE", "NOT_YET", "accumulates_wide", "dtypes", "emulates", "lacks", "stores", *_SETS)
    yield from (
        name for name in importable if line.startswith((f"{name}(", f"{name} ")) or line == name or f", {name})" in line
    )


def _declared(declaration: Declaration) -> Iterator[str]:
    """Yield the operands of ``|``, one per line: sets, single capabilities, dtypes, then unsupported capabilities."""
    claimed = {name for name in VOCABULARY if declaration.claim(Cell(name)).detail is Detail.NATIVE}
    remaining = claimed - _names(claims.TORCH_BASE) - _FLAGS.keys()
    for set_name in _SETS:
        members = _names(getattr(claims, set_name))
        if members <= remaining:
            remaining -= members
            yield set_name
    if remaining:
        yield "{" + ", ".join(f"can.{_constant(name)}" for name in VOCABULARY if name in remaining) + "}"
    yield from _dtypes(declaration)
    for name in VOCABULARY:
        claim = declaration.claim(Cell(name))
        if claim.state is State.UNSUPPORTED and name not in _FLAGS:
            yield f"lacks(can.{_constant(name)}, {json.dumps(claim.reason, ensure_ascii=False)}, NOT_YET)"


def _dtypes(declaration: Declaration) -> Iterator[str]:
    """Yield the calls that declare the dtypes in a backend file."""
    stored = [name for name in DTYPES if declaration.supports(vocabulary.DTYPE.on(name))]
    # dtypes() claims storage and every operator; a dtype with fewer claims is declared by stores().
    full = [name for name in stored if all(declaration.supports(cell) for cell in _operators(name))]
    wide = [name for name in DTYPES if declaration.supports(vocabulary.ACCUMULATE_WIDE.on(name))]
    for function, names in (
        ("dtypes", full),
        ("stores", [name for name in stored if name not in full]),
        ("accumulates_wide", wide),
    ):
        if names:
            yield f"{function}({', '.join(map(json.dumps, names))})"


def _operators(dtype: str) -> list[Cell]:
    modes = _MODES if dtype in DIFFERENTIABLE_DTYPES else (Mode.INFERENCE.value,)
    return [Cell("operators.*", dtype, mode) for mode in modes]


def _names(elements: Capabilities) -> set[str]:
    return {str(element) for element in elements}


def _constant(name: str) -> str:
    return next(constant for constant, value in vars(vocabulary).items() if value is VOCABULARY[name])

"""Families of inputs and checks of the operators: registered generators under one loop.

A family of inputs is a generator that yields calls of a cell; the loop makes each call on both sides and compares the
outcomes. What is no comparison of single calls, such as the statistics of random numbers, is a check. To add either,
write one function with a decorator in a module of this folder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import load_table
from conformance.numerics.transfer import NotLaidOut
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

Made = TypeVar("Made")
Compare = Callable[[Cell, Made], object]


class Stage(IntEnum):
    """Order of the families of a cell.

    The first failure ends a cell: small inputs come before large ones, values before forms, and these before refusals.
    """

    INPUTS = 0
    LARGE = 1
    FORMS = 2
    #: What is unusual in several ways: a simpler call of the same fault is reported first.
    SEVERAL = 3
    REFUSALS = 4
    #: What may end the device's context.
    LAST = 5


@dataclass(frozen=True)
class Family:
    """One family: which cells have it, what it makes of a cell, and how that is compared.

    ``once`` limits it to one dtype of each operator, ``deep`` to the deep tier, ``values`` to operators whose values
    are compared, ``fixed`` to cells with a sample that draws no random numbers, and ``checked`` to operators that check
    their arguments: the others read beyond a tensor that does not fit.
    """

    name: str
    mode: Mode
    make: Callable[[Cell], Iterable[Any]]
    compare: Compare[Any]
    stage: Stage
    dtypes: Collection[torch.dtype]
    once: bool
    deep: bool
    values: bool
    fixed: bool
    checked: bool

    def is_of(self, cell: Cell) -> bool:
        """Return whether a cell has this family. A profile may have few of the families."""
        return (
            (not self.dtypes or cell.dtype in self.dtypes)
            and (not self.once or cell.is_first_dtype)
            and (cell.deep or not (self.deep or self.is_left_out(cell.dtype)))
            and (not self.values or cell.values)
            and (not self.fixed or bool(cell.fixed))
            and not (self.checked and facts(cell.info.name).unchecked)
            and (cell.check.families is None or self.name in cell.check.families)
        )

    def is_left_out(self, dtype: torch.dtype) -> bool:
        """Return whether cells of this dtype have this family in the deep tier alone."""
        return f"{str(dtype).removeprefix('torch.')}-{self.mode.value}" in left_to_deep().get(self.name, ())

    def run(self, cell: Cell) -> None:
        """Make and compare all calls of this family. Its random numbers depend on the cell and its name alone."""
        torch.default_generator.manual_seed(cell.seed ^ zlib.crc32(self.name.encode()))
        try:
            for made in self.make(cell):
                self._compared(cell, made)
        except NotLaidOut as error:
            cell.check.metric("layouts", str(error))

    def _compared(self, cell: Cell, made: Any) -> None:
        """Compare one call, unless the device refuses the layout of an input."""
        try:
            self.compare(cell, made)
        except NotLaidOut as error:
            cell.check.metric("layouts", str(error))


_FAMILIES: Final[list[Family]] = []
#: Folders whose modules register families.
_ROOM, _FOLDERS = "conformance.suites.operators", ("inputs", "checks")


def source(
    mode: Mode,
    compare: Compare[Any],
    *,
    stage: Stage = Stage.INPUTS,
    dtypes: Collection[torch.dtype] = (),
    once: bool = False,
    deep: bool = False,
    values: bool = True,
    fixed: bool = False,
    checked: bool = False,
) -> Callable[[Callable[[Cell], Iterable[Made]]], Callable[[Cell], Iterable[Made]]]:
    """Register a generator of what ``compare`` takes, most often calls, as a family of inputs."""

    def register(make: Callable[[Cell], Iterable[Made]]) -> Callable[[Cell], Iterable[Made]]:
        name = f"{make.__module__.rpartition('.')[2]}.{make.__name__}"
        limits = (once, deep, values, fixed, checked)
        _FAMILIES.append(Family(name, mode, make, compare, stage, dtypes, *limits))
        return make

    return register


def check(mode: Mode, **facts: Any) -> Callable[[Callable[[Cell], None]], Callable[[Cell], None]]:
    """Register a function that compares by itself. The keywords are those of ``source``."""

    def register(body: Callable[[Cell], None]) -> Callable[[Cell], None]:
        def once_of(cell: Cell) -> Iterable[Cell]:
            return (cell,)

        once_of.__module__, once_of.__name__ = body.__module__, body.__name__
        source(mode, lambda cell, _: body(cell), **facts)(once_of)
        return body

    return register


@functools.cache
def left_to_deep() -> Mapping[str, Collection[str]]:
    """Return the axes of cells, such as ``int8-inference``, that have a family in the deep tier alone, by its name.

    ``python -m tests.faults.families --keep SECONDS`` measures and chooses them.
    """
    return load_table(__file__, "left_to_deep.toml")


@functools.cache
def families(mode: Mode) -> tuple[Family, ...]:
    """Return the families of a mode, in the order in which a cell runs them."""
    for folder in _FOLDERS:
        package = importlib.import_module(f"{_ROOM}.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    if unknown := left_to_deep().keys() - {family.name for family in _FAMILIES}:
        raise ValueError(f"left_to_deep.toml names {', '.join(sorted(unknown))}, which is no family of inputs.")
    found = [family for family in _FAMILIES if family.mode is mode]
    return tuple(sorted(found, key=lambda family: (family.stage, family.name)))

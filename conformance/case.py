"""Cases: one test with a stable id of our own, the capabilities it needs, its level and its deadline.

A suite writes ``@case`` on a test function, or ``@cases`` on one that a generator feeds::

    @case("accelerator.rng.state_roundtrip", requires=[RNG_STATE], level=Level.CORE)
    def test_state_roundtrip(accelerator): ...

    @case("accelerator.dtype.copy_roundtrip", axes={"dtype": DTYPES}, requires=[DTYPE])
    def test_copy_roundtrip(accelerator, dtype): ...

With a ``dtype`` axis, a required capability becomes the cell of that dtype. Ids read ``area.subject[axes]``.

With ``world_size`` the body runs on that many ranks at once, each a process, with a process group of their own::

    @case("comm.barrier", requires=[COMM], world_size=2)
    def test_barrier(rank, group): ...

Several world sizes make an axis of the case, the last one; the body takes ``world_size``, a number. ``isolation`` says
how much of earlier cases its processes may have seen; ``environment`` is set before they import anything.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from conformance.accelerators.capabilities import Capability, Cell
from conformance.reports.planned import PlannedCase

F = TypeVar("F", bound=Callable[..., Any])


#: The axis that several world sizes make.
WORLD_AXIS = "world"


class Tier(Enum):
    UNIT = "unit"
    WORKLOAD = "workload"


class Level(Enum):
    """How much depends on it: ``core`` cannot be declared away."""

    CORE = "core"
    STANDARD = "standard"


class Isolation(Enum):
    """Where the ranks of a case come from, from the fastest to the most separate."""

    REUSE = "reuse"  # warm processes that have run other cases
    FORK = "fork"  # fresh forks of an interpreter that has imported torch and nothing else
    EXEC = "exec"  # interpreters of their own, for cases that set the environment before torch is imported

    def at_least(self, other: Isolation) -> Isolation:
        order = list(Isolation)
        return max(self, other, key=order.index)


@dataclass(frozen=True)
class Case:
    """One planned test.

    ``requires`` are the cells that must be declared supported for the case to run as a check. ``in_reference``
    tells whether PyTorch's own CPU has what the case exercises; only then do pattern claims cover it.
    ``adaptive`` cases run whatever is declared and judge the observation against the claim (operator cells and
    capability probes); others are skipped when something they require is not declared.
    ``deadline`` is in seconds. ``world_size`` is the number of ranks the body runs on; None for none, in this process.
    ``isolation`` and ``environment`` are about ranks.
    """

    id: str
    area: str
    tier: Tier = Tier.UNIT
    level: Level = Level.STANDARD
    axes: tuple[tuple[str, str], ...] = ()
    requires: tuple[Cell, ...] = ()
    deadline: float = 60.0
    adaptive: bool = False
    in_reference: bool = True
    world_size: int | None = None
    isolation: Isolation = Isolation.REUSE
    environment: tuple[tuple[str, str], ...] = ()
    payload: Any = field(default=None, compare=False, hash=False, repr=False)

    @property
    def dtype(self) -> str | None:
        return dict(self.axes).get("dtype")

    @property
    def mode(self) -> str | None:
        return dict(self.axes).get("mode")

    @property
    def subject(self) -> str:
        """Return the id without area and axes."""
        return self.planned.subject

    @cached_property
    def planned(self) -> PlannedCase:
        """Return the description of the case that manifests, journals and reports share."""
        return PlannedCase(
            id=self.id,
            area=self.area,
            tier=self.tier.value,
            axes=dict(self.axes),
            requires=tuple(map(str, self.requires)),
            level=self.level.value,
            adaptive=self.adaptive,
            in_reference=self.in_reference,
            world_size=self.world_size,
        )


def case_id(subject: str, axes: Iterable[tuple[str, str]]) -> str:
    values = "-".join(value for _, value in axes)
    return f"{subject}[{values}]" if values else subject


def seed_of(case_id: str, base: int = 0) -> int:
    """A 31-bit seed that depends on the id and the run's base seed alone."""
    digest = hashlib.sha256(f"{base}:{case_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class CaseFamily:
    """What ``@case`` and ``@cases`` leave on a test function; ``expand`` gives its cases.

    A ``generated`` body serves many cases and compares through the ``check`` fixture, which counts: one that
    compared nothing has verified nothing.
    """

    expand: Callable[[], Sequence[Case]]
    axis_names: tuple[str, ...]
    generated: bool = False


def case(
    id: str,
    *,
    requires: Sequence[Capability | Cell] = (),
    level: Level = Level.STANDARD,
    tier: Tier = Tier.UNIT,
    axes: Mapping[str, Sequence[str]] | None = None,
    deadline: float = 60.0,
    adaptive: bool = False,
    world_size: int | Sequence[int] | None = None,
    isolation: str = "reuse",
    environment: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Mark a test function as a case. Each axis becomes an argument of the function, as a string."""
    area = id.split(".", 1)[0]
    template = Case(id=id, area=area, tier=tier, level=level, deadline=deadline, adaptive=adaptive)
    template = replace(template, isolation=_isolation(id, isolation, world_size, environment))
    template = replace(template, environment=tuple((environment or {}).items()))
    names, sizes = tuple(axes or ()), _world_sizes(id, world_size)

    def expand() -> list[Case]:
        combinations = itertools.product(*(axes or {}).values())
        planned = [tuple(zip(names, values, strict=True)) for values in combinations]
        if not isinstance(world_size, Sequence):
            return [_instance(replace(template, world_size=world_size), values, requires) for values in planned]
        return [
            _instance(replace(template, world_size=size), (*values, (WORLD_AXIS, str(size))), requires)
            for values in planned
            for size in sizes
        ]

    return _attach(CaseFamily(expand, names))


def _world_sizes(id: str, asked: int | Sequence[int] | None) -> tuple[int, ...]:
    """The world sizes of a family, each at least 1."""
    sizes = tuple(asked) if isinstance(asked, Sequence) else () if asked is None else (asked,)
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise ValueError(f"case {id!r}: world_size={asked!r} is not a number of ranks; say 2, or (2, 3) for an axis.")
    return sizes


def _isolation(id: str, word: str, world_size: object, environment: Mapping[str, str] | None) -> Isolation:
    """The word of a family, which has to fit what else is asked for."""
    if word not in (words := [one.value for one in Isolation]):
        raise ValueError(f"case {id!r}: isolation={word!r} is not one of {', '.join(words)}.")
    if world_size is None and (word != Isolation.REUSE.value or environment):
        raise ValueError(f"case {id!r}: isolation and environment are for ranks; give it a world_size.")
    if environment and word != Isolation.EXEC.value:
        raise ValueError(f"case {id!r}: environment needs isolation='exec'; other ranks have imported torch already.")
    return Isolation(word)


def cases(expand: Callable[[], Sequence[Case]]) -> Callable[[F], F]:
    """Mark a test function as the body of every case that ``expand`` returns; it takes the ``case`` fixture."""
    return _attach(CaseFamily(expand, (), generated=True))


def _attach(family: CaseFamily) -> Callable[[F], F]:
    def mark(function: F) -> F:
        function.__conformance_family__ = family  # type: ignore[attr-defined]
        return function

    return mark


def _instance(template: Case, axes: tuple[tuple[str, str], ...], requires: Sequence[Capability | Cell]) -> Case:
    values = dict(axes)
    cells = tuple(_cell(need, values.get("dtype")) for need in requires)
    return replace(template, id=case_id(template.id, axes), axes=axes, requires=cells)


#: Capabilities whose claims are made per dtype.
PER_DTYPE = frozenset({"dtype", "precision.accumulate-wide", "comm.dtype"})


def _cell(need: Capability | Cell, dtype: str | None) -> Cell:
    if isinstance(need, Cell):
        return need
    return need.on(dtype) if dtype and need.name in PER_DTYPE else need.cell

"""Cases: tests with a stable id, required capabilities, a level and a deadline.

A suite writes ``@case`` on a test function, or ``@cases`` on one that a generator feeds::

    @case("accelerator.rng.state_roundtrip", requires=[RNG_STATE], level=Level.CORE)
    def test_state_roundtrip(accelerator): ...

    @case("accelerator.dtype.copy_roundtrip", axes={"dtype": DTYPES}, requires=[DTYPE])
    def test_copy_roundtrip(accelerator, dtype): ...

With a ``dtype`` axis, a required capability becomes the cell of that dtype. Ids read ``area.subject[axes]``.

With ``world_size`` the body runs on that many ranks at once. Each is a process, and they share a process group::

    @case("comm.barrier", requires=[COMM], world_size=2)
    def test_barrier(rank, group): ...

Several world sizes become the last axis of the case; the body takes the number as ``world_size``. ``isolation`` says
whether its processes may have run other cases. ``environment`` is set before they import anything.
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


#: Axis of cases with several world sizes.
WORLD_AXIS = "world"


class Tier(Enum):
    UNIT = "unit"
    WORKLOAD = "workload"


class Level(Enum):
    """Level of a case. A ``core`` case has to pass whatever is declared."""

    CORE = "core"
    STANDARD = "standard"


class Isolation(Enum):
    """Isolation of ranks from earlier cases, from the fastest to the strictest."""

    REUSE = "reuse"  # warm processes that have run other cases
    FORK = "fork"  # fresh forks of an interpreter that has imported torch and nothing else
    EXEC = "exec"  # interpreters of their own, for cases that set the environment before torch is imported

    def at_least(self, other: Isolation) -> Isolation:
        order = list(Isolation)
        return max(self, other, key=order.index)


@dataclass(frozen=True)
class Case:
    """Test with everything that the runner needs to know about it. ``planned`` is the part that reports show.

    ``requires`` are the cells that must be declared supported, or the case is skipped. An ``adaptive`` case runs
    whatever is declared, and its observation is judged against the claim: operator cells and capability probes.
    ``in_reference`` tells whether PyTorch's own CPU has what the case exercises. Claims by pattern cover it only then.
    ``deadline`` is in seconds. ``world_size`` is the number of ranks that run the body; None runs it in this process.
    ``isolation`` and ``environment`` apply to ranks only.
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
    """Return a 31-bit seed that depends on the id and the run's base seed alone."""
    digest = hashlib.sha256(f"{base}:{case_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class CaseFamily:
    """Cases of one test function, as ``@case`` and ``@cases`` store them on it. ``expand`` returns them.

    A ``generated`` body serves many cases and compares through the ``check`` fixture. The fixture counts comparisons,
    because a case that compared nothing has verified nothing.
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
    """Return the world sizes of a family; ValueError unless each is a whole number of at least 1."""
    sizes = tuple(asked) if isinstance(asked, Sequence) else () if asked is None else (asked,)
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise ValueError(f"case {id!r}: world_size={asked!r} is not a number of ranks; say 2, or (2, 3) for an axis.")
    return sizes


def _isolation(id: str, word: str, world_size: object, environment: Mapping[str, str] | None) -> Isolation:
    """Return the isolation of a family; ValueError if it contradicts ``world_size`` or ``environment``."""
    if word not in (words := [isolation.value for isolation in Isolation]):
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


#: Capabilities that are claimed for each dtype.
PER_DTYPE = frozenset({"dtype", "precision.accumulate-wide", "comm.dtype"})


def _cell(need: Capability | Cell, dtype: str | None) -> Cell:
    if isinstance(need, Cell):
        return need
    return need.on(dtype) if dtype and need.name in PER_DTYPE else need.cell

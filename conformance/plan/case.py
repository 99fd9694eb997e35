"""Cases of the suite: tests with a stable id, required capabilities, a level and a deadline.

A suite marks a test function with ``@case``, or with ``@cases`` if a generator makes its cases::

    @case("accelerator.rng.state_roundtrip", requires=[RNG_STATE], level=Level.CORE)
    def test_state_roundtrip(accelerator): ...

    @case("accelerator.dtype.copy_roundtrip", axes={"dtype": DTYPES}, requires=[DTYPE])
    def test_copy_roundtrip(accelerator, dtype): ...

With a ``dtype`` axis, a required capability becomes the cell of that dtype. An id has the form ``area.subject[axes]``.

Values of an axis may have requirements of their own. Such an axis maps each value to them::

    @case("runtime.parity", requires=[COMM], axes={"engine": {"ddp": (), "fsdp": (COMM_AVERAGE,)}}, world_size=2)
    def test_parity(engine, rank, group): ...

With ``world_size`` the body runs on that many ranks at once. Each rank is a process, and the ranks have a process
group of their own::

    @case("comm.barrier", requires=[COMM], world_size=2)
    def test_barrier(rank, group): ...

Several world sizes become the last axis of the case; the body takes ``world_size`` as an integer. ``isolation`` decides
whether the processes may have run other cases before. ``environment`` is set before they import anything.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from conformance.accelerators.capabilities import VOCABULARY, Capability, Cell
from conformance.reports.planned import PlannedCase

F = TypeVar("F", bound=Callable[..., Any])
Needs: TypeAlias = Sequence[Capability | Cell]
#: Values of an axis; a mapping gives each value's own requirements.
Axis: TypeAlias = Sequence[str] | Mapping[str, Needs]


#: The axis of a case with several world sizes.
WORLD_AXIS = "world"


class Tier(Enum):
    """Kind of a case: a test of one behaviour, a workload that trains or runs a model, or a test with far more inputs.

    Cases of the deep tier run only with ``--tier=deep``, or where ``--case`` names them. They are in no profile.
    """

    UNIT = "unit"
    WORKLOAD = "workload"
    DEEP = "deep"


class Level(Enum):
    """Level of a case: a ``core`` case must pass even if its capability is declared unsupported."""

    CORE = "core"
    STANDARD = "standard"


class About(Enum):
    """What a case tests. Only cases about the device count in percentages and profiles."""

    DEVICE = "device"
    PACKAGE = "package"  # this package: it would pass, or fail, on every device alike
    PYTORCH = "pytorch"  # PyTorch's code above the device
    LIBRARY = "library"  # a library that users may install or not, on the device


class Isolation(Enum):
    """Origin of the processes in which the ranks of a case run, from the fastest to the most isolated."""

    REUSE = "reuse"  # warm processes that may have run other cases
    FORK = "fork"  # fresh forks of an interpreter that has imported torch and nothing else
    EXEC = "exec"  # new interpreters, for cases that set the environment before torch is imported

    def at_least(self, other: Isolation) -> Isolation:
        """Return the more isolated of the two."""
        order = list(Isolation)
        return max(self, other, key=order.index)


@dataclass(frozen=True)
class Case:
    """Planned test with an id of its own. ``planned`` is the part that manifests, journals and reports share.

    ``requires`` are the cells that must be declared supported for the case to run as a check. ``in_reference``
    tells whether PyTorch's own CPU has the tested feature; only then do pattern claims cover it.
    An ``adaptive`` case always runs, and its observation is judged against the claim (operator cells and capability
    probes). Any other case is skipped if a required cell is not declared.
    ``deadline`` is in seconds. ``world_size`` is the number of ranks that run the body; with None, the body runs in
    the process of the test without ranks. ``isolation`` and ``environment`` apply to ranks only.
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
    about: About = About.DEVICE
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
            about=self.about.value,
        )


def case_id(subject: str, axes: Iterable[tuple[str, str]]) -> str:
    """Return the id of a case: ``subject``, which begins with the area, and the values of the axes in brackets."""
    values = "-".join(value for _, value in axes)
    return f"{subject}[{values}]" if values else subject


def seed_of(case_id: str, base: int = 0) -> int:
    """Return a 31-bit seed that depends only on the id and the base seed of the run."""
    # Not hash(), which differs in every process.
    digest = hashlib.sha256(f"{base}:{case_id}".encode()).digest()
    # 31 bits: NumPy takes at most 32, and a signed integer of 32 bits can hold it.
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class CaseFamily:
    """Cases of one test function, attached by ``@case`` and ``@cases``; ``expand`` returns them.

    A ``generated`` body serves many cases and compares through the ``check`` fixture. The fixture counts the
    comparisons, because a case that compared nothing has verified nothing.
    """

    expand: Callable[[], Sequence[Case]]
    axis_names: tuple[str, ...]
    generated: bool = False


def case(
    id: str,
    *,
    requires: Needs = (),
    level: Level = Level.STANDARD,
    tier: Tier = Tier.UNIT,
    axes: Mapping[str, Axis] | None = None,
    deadline: float = 60.0,
    adaptive: bool = False,
    world_size: int | Sequence[int] | None = None,
    isolation: str = "reuse",
    environment: Mapping[str, str] | None = None,
    about: About = About.DEVICE,
) -> Callable[[F], F]:
    """Mark a test function as a case. The function takes the value of each axis as a string argument.

    A required cell with a mode and without a dtype has the dtype of the axis ``dtype``.
    """
    area = id.split(".", 1)[0]
    template = Case(id=id, area=area, tier=tier, level=level, deadline=deadline, adaptive=adaptive, about=about)
    template = replace(template, isolation=_isolation(id, isolation, world_size, environment))
    template = replace(template, environment=tuple((environment or {}).items()))
    names, sizes = tuple(axes or ()), _world_sizes(id, world_size)

    def expand() -> list[Case]:
        """Return the cases of the family: each combination of the axes, on each world size."""
        combinations = itertools.product(*(axes or {}).values())
        planned = [tuple(zip(names, values, strict=True)) for values in combinations]
        needs = [(*requires, *_needs_of(axes or {}, values)) for values in planned]
        rows = list(zip(planned, needs, strict=True))
        if not isinstance(world_size, Sequence):
            return [_instance(replace(template, world_size=world_size), values, needs) for values, needs in rows]
        return [
            _instance(replace(template, world_size=size), (*values, (WORLD_AXIS, str(size))), needs)
            for values, needs in rows
            for size in sizes
        ]

    return _attach(CaseFamily(expand, names))


def _needs_of(axes: Mapping[str, Axis], values: Iterable[tuple[str, str]]) -> Iterator[Capability | Cell]:
    """Yield the requirements that axis values have of their own."""
    for name, value in values:
        axis = axes[name]
        if isinstance(axis, Mapping):
            yield from axis[value]


def _world_sizes(id: str, given: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the world sizes of a family; raise ValueError unless each is an integer of at least 1."""
    sizes = tuple(given) if isinstance(given, Sequence) else () if given is None else (given,)
    # bool is a subclass of int, but True is not a number of ranks.
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise ValueError(f"case {id!r}: world_size={given!r} is not a number of ranks; write 2, or (2, 3) for an axis.")
    return sizes


def _isolation(id: str, name: str, world_size: object, environment: Mapping[str, str] | None) -> Isolation:
    """Return the isolation of a family; raise ValueError if it does not fit the other arguments."""
    if name not in (names := [isolation.value for isolation in Isolation]):
        raise ValueError(f"case {id!r}: isolation={name!r} is not one of {', '.join(names)}.")
    if world_size is None and (name != Isolation.REUSE.value or environment):
        raise ValueError(f"case {id!r}: isolation and environment apply to ranks only; add world_size.")
    if environment and name != Isolation.EXEC.value:
        raise ValueError(f"case {id!r}: environment needs isolation='exec'; other ranks have imported torch already.")
    return Isolation(name)


def cases(expand: Callable[[], Sequence[Case]]) -> Callable[[F], F]:
    """Mark a test function as the body of every case that ``expand`` returns. It takes the ``case`` fixture."""
    return _attach(CaseFamily(expand, (), generated=True))


def _attach(family: CaseFamily) -> Callable[[F], F]:
    def mark(function: F) -> F:
        function.__conformance_family__ = family  # type: ignore[attr-defined]
        return function

    return mark


def _instance(template: Case, axes: tuple[tuple[str, str], ...], requires: Needs) -> Case:
    values = dict(axes)
    cells = tuple(_cell(need, values.get("dtype")) for need in requires)
    return replace(template, id=case_id(template.id, axes), axes=axes, requires=cells)


#: Capabilities that are claimed for each dtype.
PER_DTYPE = frozenset(
    {"dtype", "precision.accumulate-wide", "comm.dtype"}
    | {name for name in VOCABULARY if name.startswith("invariance.")}
)


def _cell(need: Capability | Cell, dtype: str | None) -> Cell:
    if isinstance(need, Cell):
        return replace(need, dtype=dtype) if need.mode and need.dtype is None else need
    return need.on(dtype) if dtype and need.name in PER_DTYPE else need.cell

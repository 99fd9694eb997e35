"""Planned workload cases: one cell per dtype and mode, and autocast for training in 16-bit dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from conformance.accelerators.capabilities import AUTOCAST, Capability, Cell
from conformance.plan.case import Case, Tier, case_id

from .families import Family, families

DTYPES = ("float32", "bfloat16", "float16")
Expand: TypeAlias = Callable[[], Sequence[Case]]
#: Timeout of a workload case in seconds.
DEADLINE = 300.0


def planned(subject: str, mode: str, *needs: Capability) -> Expand:
    """Return a function that gives the cases of ``workloads.<subject>``, one per dtype."""
    return lambda: [_case(subject, mode, dtype, needs) for dtype in DTYPES]


def planned_families(
    what: str,
    mode: str,
    *needs: Capability,
    dtypes: Sequence[str] = DTYPES,
    having: Callable[[Family], bool] = lambda family: True,
    deep: Callable[[Family], bool] = lambda family: False,
) -> Expand:
    """Return a function that gives the cases ``workloads.<family>.<what>`` of all families that fit, one per dtype.

    Cases of the families that are ``deep`` have the deep tier.
    """
    return lambda: [
        _case(f"{name}.{what}", mode, dtype, (*needs, *_operators(family)), deep=deep(family))
        for name, family in families().items()
        if having(family)
        for dtype in dtypes
    ]


def _operators(family: Family) -> list[Cell]:
    return [Cell(f"operators.{name}", "float32", "inference") for name in family.needs]


def _case(subject: str, mode: str, dtype: str, needs: Sequence[Capability | Cell], *, deep: bool = False) -> Case:
    axes = (("dtype", dtype), ("mode", mode))
    model = subject.split(".", 1)[0]
    cells = [
        Cell(f"workloads.{model}", dtype, mode),
        *(need if isinstance(need, Cell) else need.cell for need in needs),
    ]
    if mode == "training" and dtype != "float32":
        cells.append(AUTOCAST.cell)
    return Case(
        id=case_id(f"workloads.{subject}", axes),
        area="workloads",
        tier=Tier.DEEP if deep else Tier.WORKLOAD,
        axes=axes,
        requires=tuple(cells),
        deadline=DEADLINE,
    )

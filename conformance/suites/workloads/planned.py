"""Planned workload cases: one cell per dtype and mode, and autocast for training in 16-bit dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.accelerators.capabilities import AUTOCAST, Capability, Cell
from conformance.case import Case, Tier, case_id

DTYPES = ("float32", "bfloat16", "float16")
#: Timeout of a workload case in seconds.
DEADLINE = 300.0


def planned(subject: str, mode: str, *needs: Capability) -> Callable[[], Sequence[Case]]:
    """Return a function that gives the cases of ``workloads.<subject>``, one per dtype."""
    return lambda: [_case(subject, mode, dtype, needs) for dtype in DTYPES]


def _case(subject: str, mode: str, dtype: str, needs: Sequence[Capability]) -> Case:
    axes = (("dtype", dtype), ("mode", mode))
    model = subject.split(".", 1)[0]
    cells = [Cell(f"workloads.{model}", dtype, mode), *(need.cell for need in needs)]
    if mode == "training" and dtype != "float32":
        cells.append(AUTOCAST.cell)
    return Case(
        id=case_id(f"workloads.{subject}", axes),
        area="workloads",
        tier=Tier.WORKLOAD,
        axes=axes,
        requires=tuple(cells),
        deadline=DEADLINE,
    )

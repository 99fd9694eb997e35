"""Plan of the module cases: each module of modules.toml × dtype × mode.

The list is data, so that a plan imports nothing and is the same with every torch. ``tests/suites/module_list.py``
writes it from PyTorch's databases.
"""

from __future__ import annotations

from conformance.accelerators.capabilities import Cell, Mode
from conformance.numerics.budgets import load_table
from conformance.plan.case import Case

AREA = "modules"
DTYPES = ("float32", "float16", "bfloat16")


def generate() -> list[Case]:
    """Return the case of every module in each dtype and mode that PyTorch's own CPU has."""
    rows = load_table(__file__, "modules.toml")
    return [
        _case(name, dtype, mode.value, row["operators"])
        for name, row in rows.items()
        for mode in Mode
        for dtype in DTYPES
        if f"{dtype}-{mode.value}" not in row.get("lacks", ())
    ]


def _case(name: str, dtype: str, mode: str, operators: list[str]) -> Case:
    return Case(
        id=f"{AREA}.{name}[{dtype}-{mode}]",
        area=AREA,
        axes=(("dtype", dtype), ("mode", mode)),
        # A module is claimed with the operators of which it consists.
        requires=tuple(Cell(f"operators.{operator}", dtype, mode) for operator in operators),
        payload=name,
    )

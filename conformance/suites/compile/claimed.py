"""Choose rows of the tables: those whose functions call only operators that the device claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.accelerators.capabilities import Cell, Mode
from conformance.suites import called_operators


def claims(declaration: Any, operator: str, dtype: str, mode: Mode = Mode.INFERENCE) -> bool:
    """Return whether the device claims the operator for a dtype."""
    return bool(declaration.supports(Cell(f"operators.{operator}", dtype, mode.value)))


def claimed(
    declaration: Any, rows: Sequence[Any], given: Callable[[], Any], dtype: str = "", mode: Mode = Mode.INFERENCE
) -> list[Any]:
    """Return the rows whose operators the device claims: those that they name, and those that their functions call.

    A row has a name, its operators, its dtype unless ``dtype`` is that of all rows, and its function, which is called
    with what ``given`` makes on the host.
    """
    chosen = []
    for row in rows:
        named = all(claims(declaration, operator, dtype or row[2], mode) for operator in row[1].split())
        if named and called_operators.are_claimed(declaration, row[-1], given()):
            chosen.append(row)
    return chosen

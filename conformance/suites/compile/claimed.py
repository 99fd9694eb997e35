"""Choose rows of the tables: those whose functions call only operators that the device claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.accelerators.capabilities import Mode
from conformance.suites.operator_claims import claims, claims_calls


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
        if named and claims_calls(declaration, row[-1], given()):
            chosen.append(row)
    return chosen

"""Reading packed reports back into the form that reports are checked in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from conformance.errors import JournalError
from conformance.reports.validation.limits import MAX_ITEMS

PACKED: Final = 1
#: What a shape says of its cases.
COMMON: Final = ("area", "tier", "level", "adaptive", "in_reference", "world_size", "outcome", "reason", "ranks")
_PARTS: Final = 8


def said_axes(id: str, names: Sequence[str]) -> Mapping[str, str] | None:
    """The axes that the id's brackets say, if they can be told apart."""
    values = id.partition("[")[2].removesuffix("]").split("-") if names else []
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None


def unpack(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The canonical value that a packed one stands for; the reader of reports checks what is inside."""
    if value["packed"] != PACKED:
        raise JournalError(f"{where} is packed in a way that this version does not read.")
    if "cases" in value:
        raise JournalError(f"{where} is packed, and lists cases besides.")
    shapes, rows = value.get("shapes"), value.get("rows")
    if not isinstance(shapes, list) or not isinstance(rows, list) or len(rows) > MAX_ITEMS:
        raise JournalError(f"{where} is not a packed report: it has no lists of shapes and rows.")
    head = {name: one for name, one in value.items() if name not in ("packed", "shapes", "rows")}
    try:
        return {**head, "cases": [_case(row, shapes) for row in rows]}
    except (TypeError, ValueError, LookupError, AttributeError):
        raise JournalError(f"{where} is not a packed report: a row does not fit its shape.") from None


def _case(row: Any, shapes: Sequence[Any]) -> dict[str, Any]:
    if type(row) is not list or not 2 <= len(row) <= _PARTS or type(row[1]) is not int or row[1] < 0:
        raise TypeError
    full: list[Any] = [*row, *[0] * (_PARTS - len(row))]
    id, shape, seconds, requires, axes, values, message, repro = full
    common, names, metrics = shapes[shape]
    if type(id) is not str or not set(common) <= set(COMMON):
        raise TypeError
    return dict(
        _present(
            id=id,
            **common,
            seconds=seconds,
            requires=requires or ([id] if requires == 0 else requires),
            axes=dict(zip(names, axes, strict=True)) if axes else dict(said_axes(id, names) or {}),
            metrics=dict(zip(metrics, values or (), strict=True)),
            message=message,
            repro=repro,
        )
    )


def _present(**members: Any) -> Iterator[tuple[str, Any]]:
    """Members that hold something: a zero stands for what is not there."""
    return ((name, value) for name, value in members.items() if value not in (0, [], {}) or value is False)

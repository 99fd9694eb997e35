"""The JSON form of what reports hold: the way back is ``conformance.reports.validation``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, cast


def as_plain(value: Any) -> Any:
    """The JSON form of dataclasses, enums, tuples and mappings; members that hold their default are left out."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_members(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: as_plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_plain(one) for one in value]
    return value


def _plain_members(value: Any) -> dict[str, Any]:
    members, own = vars(value), cast(Any, type(value))
    return {
        name: as_plain(members[name])
        for name, kind, default in _defaults(own)
        if name in members and (type(members[name]) is not kind or members[name] != default)
    }


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Name, type and value of every field's default; a field without one has the type None, which no value has."""
    return tuple((field.name, *_default(field)) for field in dataclasses.fields(kind))


def _default(field: dataclasses.Field[Any]) -> tuple[Any, Any]:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return type(made), made
    if field.default is not dataclasses.MISSING:
        return type(field.default), field.default
    return None, None

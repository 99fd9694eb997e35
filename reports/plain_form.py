"""The JSON form of report values; ``conformance.reports.validation`` reads it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def as_plain(value: Any) -> Any:
    """Return the JSON form of dataclasses, enums, tuples and mappings. Members that hold their default are left out."""
    kind: Any = type(value)
    return value if kind in _SCALARS else _converter(kind)(value)


@cache
def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return the function that converts values of a type."""
    if dataclasses.is_dataclass(kind):
        return _members_converter(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {k: v if type(v) in _SCALARS else as_plain(v) for k, v in value.items()}
    if issubclass(kind, (tuple, list)):
        return lambda value: [v if type(v) in _SCALARS else as_plain(v) for v in value]
    return lambda value: value


def _members_converter(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Return the converter of a dataclass. It reads ``vars``, since values that were read lack their defaults there."""
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind)}

    def convert(value: Any) -> dict[str, Any]:
        members, plain = vars(value), {}
        for name, default in defaults.items():
            # The types are compared too: 0, 0.0 and False are equal, and different in JSON.
            member = members.get(name, default)
            if member != default or type(member) is not type(default):
                plain[name] = member if type(member) in _SCALARS else as_plain(member)
        return plain

    return convert


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or a value that equals nothing."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return object() if field.default is dataclasses.MISSING else field.default

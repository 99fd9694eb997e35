"""Reading untrusted JSON into frozen dataclasses: every key, type and size is checked, and an error is one sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from conformance.errors import JournalError

T = TypeVar("T")

MAX_BYTES = 64 * 1024 * 1024
MAX_ITEMS = 200_000
MAX_KEYS = 256
MAX_TEXT = 20_000
_MAX_INT = 2**63


def read_json(path: Path) -> Any:
    """The JSON value of a file of at most 64 MiB; no duplicate keys, no NaN, no infinities."""
    data = read_capped(path)
    try:
        return json.loads(data, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise JournalError(f"{path} is nested too deeply to be a report.") from None
    except ValueError as error:
        raise JournalError(f"{path} is not valid JSON: {error}.") from None


def read_capped(path: Path) -> bytes:
    """The bytes of a file that is not too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise JournalError(f"{path} is larger than {MAX_BYTES >> 20} MiB; no report of this suite is.")
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read(kind: type[T], value: Any, where: str) -> T:
    """``value`` as an instance of the dataclass ``kind``; JournalError names the first thing that is wrong."""
    result: T = _dataclass(kind, value, where)
    return result


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    members = _members(value, where)
    hints, required = _shape(kind)
    for name in members:
        if name not in hints:
            raise JournalError(f"{where} has an unknown key {name!r}; known: {', '.join(hints)}.")
    for name in required:
        if name not in members:
            raise JournalError(f"{where} lacks the key {name!r}.")
    try:
        return kind(**{name: _value(hints[name], one, f"{where}.{name}") for name, one in members.items()})
    except ValueError as error:
        raise JournalError(f"{where}: {error}.") from None


@cache
def _shape(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    absent = dataclasses.MISSING
    required = tuple(f.name for f in fields if f.default is absent and f.default_factory is absent)
    return {f.name: hints[f.name] for f in fields}, required


def _value(kind: Any, value: Any, where: str) -> Any:
    if kind in _SCALARS:
        return _SCALARS[kind](value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, value, where)
    if origin is tuple:
        return tuple(_value(get_args(kind)[0], one, f"{where}[{i}]") for i, one in enumerate(_items(value, where)))
    if origin is not None and issubclass(origin, Mapping):
        return {k: _value(get_args(kind)[1], one, f"{where}.{k}") for k, one in _members(value, where).items()}
    if issubclass(kind, Enum):
        return _member(kind, value, where)
    return _dataclass(kind, value, where)


def _union(kind: Any, value: Any, where: str) -> Any:
    options = [option for option in get_args(kind) if option is not type(None)]
    if value is None and len(options) < len(get_args(kind)):
        return None
    if len(options) == 1:
        return _value(options[0], value, where)
    if type(value) in options:
        return _value(type(value), value, where)
    raise _wrong("a number or a string", value, where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong("a string", value, where)
    if len(value) > MAX_TEXT:
        raise JournalError(f"{where} is longer than {MAX_TEXT} characters.")
    return value


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_INT:
        raise _wrong("a whole number", value, where)
    return value


def _real(value: Any, where: str) -> float:
    if not isinstance(value, float):
        return float(_whole(value, where))
    if not math.isfinite(value):
        raise _wrong("a finite number", value, where)
    return value


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong("true or false", value, where)
    return value


def _wrong(expected: str, value: Any, where: str) -> JournalError:
    return JournalError(f"{where} must be {expected}, not {reprlib.repr(value)}.")


def _member(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise _wrong("one of " + ", ".join(str(one.value) for one in kind), value, where) from None


def _members(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("an object", value, where)
    if len(value) > MAX_KEYS:
        raise JournalError(f"{where} has more than {MAX_KEYS} keys.")
    for name in value:
        _text(name, f"a key of {where}")
    return value


def _items(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong("a list", value, where)
    if len(value) > MAX_ITEMS:
        raise JournalError(f"{where} has more than {MAX_ITEMS} items.")
    return value


_SCALARS: dict[Any, Callable[[Any, str], Any]] = {str: _text, int: _whole, float: _real, bool: _boolean}


def as_plain(value: Any) -> Any:
    """The JSON form of dataclasses, enums, tuples and mappings; members that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value) if not _is_default(value, f)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: as_plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_plain(one) for one in value]
    return value


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    held = getattr(value, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return bool(held == field.default_factory())
    return field.default is not dataclasses.MISSING and type(held) is type(field.default) and held == field.default

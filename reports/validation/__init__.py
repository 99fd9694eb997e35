"""Reading untrusted values into frozen dataclasses: every key, type and size is checked, and an error is one sentence.

The reader of a type is built once. Where something is wrong is only told when something is wrong, so that reading
twenty thousand cases costs little more than making them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from conformance.errors import JournalError
from conformance.reports.validation.containers import mapping_reader, tuple_reader, union_reader
from conformance.reports.validation.objects import object_reader
from conformance.reports.validation.reader import Fault, Reader
from conformance.reports.validation.scalars import SCALARS, enum_reader

T = TypeVar("T")


def read(kind: type[T], value: Any, where: str) -> T:
    """``value`` as an instance of the dataclass ``kind``; JournalError names the first thing that is wrong."""
    asked: Any = kind
    try:
        result: T = reader_of(asked).one(value)
    except Fault as fault:
        raise JournalError(fault.text(where)) from None
    return result


@cache
def reader_of(kind: Any) -> Reader:
    """The reader of a type: a scalar, an enum, a dataclass, or an optional, a tuple or a mapping of such."""
    if kind in SCALARS:
        return SCALARS[kind]
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        readers = {option: reader_of(option) for option in options if option is not types.NoneType}
        return union_reader(readers, optional=types.NoneType in options)
    if origin is tuple:
        return tuple_reader(reader_of(get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        item = get_args(kind)[1]
        return mapping_reader(reader_of(item), frozenset(get_args(item) or (item,)) & {str, int, float})
    if issubclass(kind, Enum):
        return enum_reader(kind)
    hints = get_type_hints(kind)
    return object_reader(kind, {field.name: reader_of(hints[field.name]) for field in dataclasses.fields(kind)})

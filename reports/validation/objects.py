"""Dataclasses: the keys of an object are the names of the fields."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Final

from conformance.reports.validation.reader import Fault, Reader, all_of, wrong

#: Thousands of cases leave out the same members and have the rest in the same order; a hostile file has as many orders.
_SHAPES: Final = 256


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What objects with certain keys need: the readers of their members, and what is made for those they leave out.

    A member with a plain default needs nothing: the default is an attribute of the class.
    """

    readers: tuple[tuple[str, Reader], ...]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


def object_reader(kind: Any, readers: Mapping[str, Reader]) -> Reader:
    """Of the dataclass ``kind``, whose fields have these readers."""
    shape_of = lru_cache(maxsize=_SHAPES)(partial(_shape, kind, readers))
    make = _maker(kind)

    def one(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong("an object", value)
        return make(_members(value, shape_of(tuple(value))))

    def many(values: list[Any]) -> list[Any]:
        keys = list(map(tuple, values)) if all_of(dict, values) else []
        alike: dict[tuple[Any, ...], list[Any]] = {key: [] for key in keys}
        if not 0 < len(alike) <= _SHAPES:
            return [one(value) for value in values]
        for key, value in zip(keys, values, strict=True):
            alike[key].append(value)
        made = {key: map(make, _columns(rows, shape_of(key))) for key, rows in alike.items()}
        return [next(made[key]) for key in keys]

    return Reader(one, many)


def _members(value: dict[str, Any], shape: _Shape) -> dict[str, Any]:
    members, name = value.copy(), ""
    try:
        for name, reader in shape.readers:
            members[name] = reader.one(value[name])
    except Fault as fault:
        raise fault.inside(f".{name}") from None
    for name, factory in shape.factories:
        members[name] = factory()
    return members


def _columns(rows: list[dict[str, Any]], shape: _Shape) -> list[dict[str, Any]]:
    """The members of objects with the same keys, read a column at a time."""
    members = list(map(dict.copy, rows))
    for name, reader in shape.readers:
        column = list(map(itemgetter(name), rows))
        read = reader.many(column)
        if read is not column:
            for one, value in zip(members, read, strict=True):
                one[name] = value
    for name, factory in shape.factories:
        for one in members:
            one[name] = factory()
    return members


def _shape(kind: Any, readers: Mapping[str, Reader], names: tuple[Any, ...]) -> _Shape:
    """The shape of an object with these keys; a key that is unknown or missing is a fault."""
    for name in names:
        if name not in readers:
            raise Fault(f" has an unknown key {reprlib.repr(name)}; known: {', '.join(readers)}.")
    absent, left_out = dataclasses.MISSING, [f for f in dataclasses.fields(kind) if f.name not in names]
    for field in left_out:
        if field.default is absent and field.default_factory is absent:
            raise Fault(f" lacks the key {field.name!r}.")
    return _Shape(
        readers=tuple((name, readers[name]) for name in names),
        factories=tuple((f.name, f.default_factory) for f in left_out if f.default_factory is not absent),
    )


def _maker(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """``kind(**members)`` of checked members, without a call for each field, which is what a frozen dataclass makes."""
    check = getattr(kind, "__post_init__", None)

    def make(members: dict[str, Any]) -> Any:
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", members)
        if check is not None:
            try:
                check(made)
            except ValueError as error:
                raise Fault(f": {error}.") from None
        return made

    return make

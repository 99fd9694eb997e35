"""Reading untrusted values into frozen dataclasses: every key, type and size is checked, and an error is one sentence.

The reader of a type is built once. Where something is wrong is only told when something is wrong, so that reading
twenty thousand cases costs little more than making them.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from conformance.errors import JournalError

T = TypeVar("T")

#: Takes an untrusted value and returns it checked, or raises _Fault.
Reader = Callable[[Any], Any]

MAX_ITEMS: int = 200_000
MAX_KEYS: Final = 256
MAX_TEXT: Final = 20_000
_MAX_INT: Final = 2**63


class _Fault(Exception):
    """What is wrong, and the way there from the innermost value outwards."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        self.way: list[str] = []

    def inside(self, step: str) -> _Fault:
        self.way.append(step)
        return self

    def text(self, where: str) -> str:
        return f"{where}{''.join(reversed(self.way))}{self.sentence}"


def read(kind: type[T], value: Any, where: str) -> T:
    """``value`` as an instance of the dataclass ``kind``; JournalError names the first thing that is wrong."""
    asked: Any = kind
    try:
        result: T = reader_of(asked)(value)
    except _Fault as fault:
        raise JournalError(fault.text(where)) from None
    return result


@cache
def reader_of(kind: Any) -> Reader:
    """The reader of a type: a scalar, an enum, a dataclass, or an optional, a tuple or a mapping of such."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(get_args(kind))
    if origin is tuple:
        return _tuple_reader(reader_of(get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        item = get_args(kind)[1]
        return _mapping_reader(reader_of(item), frozenset(get_args(item) or (item,)) & {str, int, float})
    if issubclass(kind, Enum):
        return _enum_reader(kind)
    return _dataclass_reader(kind)


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: reader_of(hints[field.name]) for field in dataclasses.fields(kind)}
    texts = frozenset(name for name in readers if hints[name] is str)
    # Thousands of cases have the same keys in the same order; a hostile file has thousands of orders.
    shape_of = lru_cache(maxsize=256)(partial(_shape, kind, readers, texts))
    make = _maker(kind)

    def build(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        shape = shape_of(tuple(value))
        members, name = {**shape.defaults, **value}, ""
        try:
            for name in shape.texts:
                one = value[name]
                # Most values are short texts in their place: no call is made for those.
                if type(one) is not str or len(one) > MAX_TEXT:
                    _text(one)
            for name, reader in shape.others:
                members[name] = reader(value[name])
        except _Fault as fault:
            raise fault.inside(f".{name}") from None
        for name, factory in shape.factories:
            members[name] = factory()
        try:
            return make(members)
        except ValueError as error:
            raise _Fault(f": {error}.") from None

    return build


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What objects with certain keys need: their texts, the readers of the rest, and what they leave out."""

    texts: tuple[str, ...]
    others: tuple[tuple[str, Reader], ...]
    defaults: Mapping[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


def _shape(kind: Any, readers: Mapping[str, Reader], texts: frozenset[str], names: tuple[Any, ...]) -> _Shape:
    """The shape of an object with these keys; a key that is unknown or missing is a fault."""
    for name in names:
        if name not in readers:
            raise _Fault(f" has an unknown key {reprlib.repr(name)}; known: {', '.join(readers)}.")
    absent, left_out = dataclasses.MISSING, [f for f in dataclasses.fields(kind) if f.name not in names]
    for field in left_out:
        if field.default is absent and field.default_factory is absent:
            raise _Fault(f" lacks the key {field.name!r}.")
    return _Shape(
        texts=tuple(name for name in names if name in texts),
        others=tuple((name, readers[name]) for name in names if name not in texts),
        defaults={f.name: f.default for f in left_out if f.default is not absent},
        factories=tuple((f.name, f.default_factory) for f in left_out if f.default_factory is not absent),
    )


def _maker(kind: Any) -> Reader:
    """``kind(**members)`` of all members, without a call for each field, which is what a frozen dataclass makes."""
    check = getattr(kind, "__post_init__", None)

    def make(members: dict[str, Any]) -> Any:
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", members)
        if check is not None:
            check(made)
        return made

    return make


def _union_reader(options: tuple[Any, ...]) -> Reader:
    kinds = [option for option in options if option is not types.NoneType]
    readers = {kind: reader_of(kind) for kind in kinds}
    only = readers[kinds[0]] if len(kinds) == 1 else None
    optional = len(kinds) < len(options)

    def optionally(value: Any) -> Any:
        return None if optional and value is None else only(value) if only else one_of(value)

    def one_of(value: Any) -> Any:
        chosen = readers.get(type(value))
        if chosen is None:
            raise _wrong("a number or a string", value)
        return chosen(value)

    return optionally if optional or only else one_of


def _tuple_reader(item: Reader) -> Reader:
    def items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong("a list", value)
        if len(value) > MAX_ITEMS:
            raise _Fault(f" has more than {MAX_ITEMS} items.")
        try:
            return tuple([item(one) for one in value])
        except _Fault as fault:
            raise fault.inside(f"[{_first_fault(item, value)}]") from None

    return items


def _first_fault(item: Reader, values: list[Any]) -> int:
    """The place of the first value that is wrong. It is looked for only once it is known that there is one."""
    for place, one in enumerate(values):
        try:
            item(one)
        except _Fault:  # noqa: PERF203 - it is wrong once
            return place
    raise AssertionError("a value that was wrong is right")


def _mapping_reader(item: Reader, plain: frozenset[type]) -> Reader:
    def members(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong("an object", value)
        if len(value) > MAX_KEYS:
            raise _Fault(f" has more than {MAX_KEYS} keys.")
        if _are_plain(value, plain):
            return value.copy()
        read, name = {}, ""
        try:
            for name, one in value.items():
                read[name if type(name) is str and len(name) <= MAX_TEXT else _text(name)] = item(one)
        except _Fault as fault:
            raise fault.inside(f".{reprlib.repr(name).strip(_QUOTES)}") from None
        return read

    return members


_QUOTES: Final = "'\""


def _are_plain(values: dict[Any, Any], kinds: frozenset[type]) -> bool:
    """Whether all values are short texts or moderate numbers of these kinds, as nearly all are: no call for each."""
    for name, one in values.items():
        kind = type(one)
        if kind not in kinds or type(name) is not str or len(name) > MAX_TEXT:
            return False
        if len(one) > MAX_TEXT if kind is str else not -_MAX_INT <= one <= _MAX_INT:
            return False
    return True


def _enum_reader(kind: type[Enum]) -> Reader:
    known = {one.value: one for one in kind}

    def member(value: Any) -> Enum:
        if type(value) is str and value in known:
            return known[value]
        raise _wrong("one of " + ", ".join(map(str, known)), value)

    return member


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _wrong("a string", value)
    if len(value) > MAX_TEXT:
        raise _Fault(f" is longer than {MAX_TEXT} characters.")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -_MAX_INT <= value <= _MAX_INT:
        raise _wrong("a whole number", value)
    return value


def _real(value: Any) -> float:
    if type(value) is not float:
        return float(_whole(value))
    if not math.isfinite(value):
        raise _wrong("a finite number", value)
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


def _wrong(expected: str, value: Any) -> _Fault:
    return _Fault(f" must be {expected}, not {reprlib.repr(value)}.")


_SCALARS: Final[dict[Any, Reader]] = {str: _text, int: _whole, float: _real, bool: _boolean}


# --- the other way --------------------------------------------------------------------------------------------------


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
        if type(members[name]) is not kind or members[name] != default
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

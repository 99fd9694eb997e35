"""Reader of untrusted JSON values into frozen dataclasses: it checks every key, type and size.

The reader of a type is built once, and reads lists by columns: whether all values of a column are short texts is one
question, not twenty thousand. The place of an error is searched only after something was found to be wrong.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from conformance.base.errors import JournalError
from conformance.reports.json_files import MAX_CASES

T = TypeVar("T")

#: Limits of one value. A report of 20,000 cases stays far below them.
MAX_ITEMS: int = MAX_CASES
#: Limits of untrusted values: keys of an object, characters of a text, size of an integer.
MAX_KEYS: Final = 256
MAX_TEXT: Final = 20_000
#: Beyond it readers in other languages lose digits or fail.
MAX_INT: Final = 2**63
#: Different sets of keys that are read by columns. Honest reports have a few; a hostile one has one for each object.
_MOST_SHAPES: Final = 256
#: Items of a list that are read together: so many cases stay in the processor's cache while their columns are read.
_TOGETHER: int = 500
_QUOTES: Final = "'\""


def read(kind: type[T], value: Any, where: str) -> T:
    """Return ``value`` as an instance of ``kind``; JournalError names the first thing that is wrong and where it is."""
    requested: Any = kind
    try:
        result: T = _reader_of(requested).one(value)
    except InvalidValue as error:
        raise JournalError(error.sentence(where)) from None
    return result


def read_many(kind: type[T], values: list[Any], where: str, first: int, lines: Sequence[int]) -> list[T]:
    """Return a part of a list as instances of ``kind``; JournalError names index and line of the first wrong value.

    ``first`` is the index of the first value, and ``lines`` has the line of each.
    """
    requested: Any = kind
    reader = _reader_of(requested)
    try:
        return reader.many(values)
    except InvalidValue:
        index, error = _first_fault(reader, values)
        sentence = error.inside(f"[{first + index}]").sentence(where)
        raise JournalError(f"{sentence.removesuffix('.')} (line {lines[index]}).") from None


class InvalidValue(Exception):
    """A fault, with the path to it from the innermost value outwards."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.path: list[str] = []

    def inside(self, step: str) -> InvalidValue:
        """Add one step of the path; return the same exception."""
        self.path.append(step)
        return self

    def sentence(self, where: str) -> str:
        """Return the message; ``where`` names the outermost value."""
        return f"{where}{''.join(reversed(self.path))}{self.fault}"


def _wrong(expected: str, value: Any) -> InvalidValue:
    return InvalidValue(f" must be {expected}, not {reprlib.repr(value)}.")


@dataclasses.dataclass(frozen=True)
class ValueReader:
    """Pair of functions that check untrusted values of one type and return them, or raise InvalidValue.

    ``one`` reads one value. ``many`` reads a list of them. It returns the same list object when no value changed. Its
    InvalidValue tells that a value is wrong, but not which one.
    """

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], list[Any]]


def _each(one: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """Return a ``many`` that calls ``one`` for each value."""
    return lambda values: [one(value) for value in values]


def _all_of(kind: type, values: Iterable[Any]) -> bool:
    """Return whether every value is of exactly this type. A bool is not a number here."""
    return set(map(type, values)) <= {kind}


@cache
def _reader_of(kind: Any) -> ValueReader:
    """Return the reader of a scalar, an enum, a dataclass, or an optional, a tuple or a mapping of these."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        readers = {option: _reader_of(option) for option in options if option is not types.NoneType}
        return _union_reader(readers, optional=types.NoneType in options)
    if origin in (tuple, Sequence):
        return _tuple_reader(_reader_of(get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        item = get_args(kind)[1]
        return _mapping_reader(_reader_of(item), frozenset(get_args(item) or (item,)) & {str, int, float})
    if issubclass(kind, Enum):
        return _enum_reader(kind)
    hints = get_type_hints(kind)
    return _object_reader(kind, {field.name: _reader_of(hints[field.name]) for field in dataclasses.fields(kind)})


# --- scalars and enums ----------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Return a checked text. The type is compared exactly, as everywhere here."""
    if type(value) is not str:
        raise _wrong("a string", value)
    if len(value) > MAX_TEXT:
        raise InvalidValue(f" is longer than {MAX_TEXT} characters.")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
        raise _wrong("a whole number", value)
    return value


def _real(value: Any) -> float:
    """Return a checked finite number; an integer becomes a float, as writers may leave out the point."""
    if type(value) is int:
        return float(_whole(value))
    if type(value) is not float or not math.isfinite(value):
        raise _wrong("a finite number", value)
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


def _are_texts(values: list[Any]) -> bool:
    """Return whether all values are texts, and none is too long."""
    return _all_of(str, values) and max(map(len, values), default=0) <= MAX_TEXT


def _are_within_limits(values: list[Any]) -> bool:
    """Return whether all texts, floats and whole numbers among the values are within the limits."""
    kinds = set(map(type, values))
    if kinds <= {str}:
        return _are_texts(values)
    if kinds <= {int, float} and _are_moderate(values):
        return True
    texts = [value for value in values if type(value) is str]
    reals = [value for value in values if type(value) is float]
    wholes = [value for value in values if type(value) is int]
    return (
        _are_texts(texts)
        and all(map(math.isfinite, reals))
        and -MAX_INT <= min(wholes, default=0) <= max(wholes, default=0) <= MAX_INT
    )


def _are_moderate(values: list[Any]) -> bool:
    """Return True for numbers that are finite and within the limits, as nearly all are. False proves nothing."""
    try:
        # A sum with an infinity or NaN in it is not finite, and NaN would hide a large number from max() and min().
        return math.isfinite(sum(values)) and -MAX_INT <= min(values, default=0) <= max(values, default=0) <= MAX_INT
    except OverflowError:
        return False


def _texts(values: list[Any]) -> list[Any]:
    return values if _are_texts(values) else [_text(value) for value in values]


def _reals(values: list[Any]) -> list[Any]:
    return values if _all_of(float, values) and _are_within_limits(values) else [_real(value) for value in values]


def _booleans(values: list[Any]) -> list[Any]:
    return values if _all_of(bool, values) else [_boolean(value) for value in values]


_SCALARS: Final[dict[Any, ValueReader]] = {
    str: ValueReader(_text, _texts),
    int: ValueReader(_whole, _each(_whole)),
    float: ValueReader(_real, _reals),
    bool: ValueReader(_boolean, _booleans),
}


def _enum_reader(kind: type[Enum]) -> ValueReader:
    """Return the reader of an enum's values, which are its members' texts."""
    known = {member.value: member for member in kind}

    def one(value: Any) -> Enum:
        """Return the member with this value."""
        if type(value) is str and value in known:
            return known[value]
        raise _wrong("one of " + ", ".join(map(str, known)), value)

    def many(values: list[Any]) -> list[Any]:
        """Return the members with these values."""
        if _all_of(str, values) and set(values) <= known.keys():
            return list(map(known.__getitem__, values))
        return [one(value) for value in values]

    return ValueReader(one, many)


# --- optional values, lists, and objects whose keys are data --------------------------------------------------------


def _union_reader(readers: Mapping[type, ValueReader], *, optional: bool) -> ValueReader:
    """Return the reader of a value of one of these types, or of null too where it is ``optional``."""
    only = next(iter(readers.values())) if len(readers) == 1 else None

    def one(value: Any) -> Any:
        """Return one value, read by the reader for its type."""
        if optional and value is None:
            return None
        chosen = only or readers.get(type(value))
        if chosen is None:
            raise _wrong("a number or a string", value)
        return chosen.one(value)

    def many(values: list[Any]) -> list[Any]:
        if only is None or None in values:
            return [one(value) for value in values]
        return only.many(values)

    return ValueReader(one, many)


def _tuple_reader(item: ValueReader) -> ValueReader:
    """Return the reader of a list, whose items ``item`` reads, as a tuple."""

    def one(value: Any) -> tuple[Any, ...]:
        """Return one list as a tuple. The first wrong item is named by its index."""
        if type(value) is not list:
            raise _wrong("a list", value)
        if len(value) > MAX_ITEMS:
            raise InvalidValue(f" has {len(value)} items; this version reads at most {MAX_ITEMS}.")
        try:
            if len(value) <= _TOGETHER:
                return tuple(item.many(value))
            parts = (value[start : start + _TOGETHER] for start in range(0, len(value), _TOGETHER))
            return tuple(chain.from_iterable(map(item.many, parts)))
        except InvalidValue:
            index, error = _first_fault(item, value)
            raise error.inside(f"[{index}]") from None

    def many(values: list[Any]) -> list[Any]:
        """Return many lists as tuples: their items are read together, which is faster than list by list."""
        if not _all_of(list, values) or max(map(len, values), default=0) > MAX_ITEMS:
            return [one(value) for value in values]
        flat = list(chain.from_iterable(values))
        # The reader returned its own argument, so every item is right as it stands.
        read = item.many(flat)
        if read is flat:
            return list(map(tuple, values))
        rest = iter(read)
        return [tuple(islice(rest, len(value))) for value in values]

    return ValueReader(one, many)


def _first_fault(item: ValueReader, values: list[Any]) -> tuple[int, InvalidValue]:
    """Return the index and the fault of the first wrong value."""
    for index, value in enumerate(values):
        try:
            item.one(value)
        except InvalidValue as error:  # noqa: PERF203 - the loop ends here
            return index, error
    raise AssertionError("a value that was wrong is right")


def _mapping_reader(item: ValueReader, kinds: frozenset[type]) -> ValueReader:
    """Return the reader of a mapping from texts to values of these scalar types, or to values that ``item`` reads."""

    def one(value: Any) -> dict[str, Any]:
        """Return one object as a dictionary. A wrong member is named by its key."""
        if type(value) is not dict:
            raise _wrong("an object", value)
        if len(value) > MAX_KEYS:
            raise InvalidValue(f" has more than {MAX_KEYS} keys.")
        read, name = {}, ""
        try:
            for name, member in value.items():
                read[_text(name)] = item.one(member)
        except InvalidValue as error:
            raise error.inside(f".{reprlib.repr(name).strip(_QUOTES)}") from None
        return read

    def many(values: list[Any]) -> list[Any]:
        return values if _are_plain_mappings(values, kinds) else [one(value) for value in values]

    return ValueReader(one, many if kinds else _each(one))


def _are_plain_mappings(values: list[Any], kinds: frozenset[type]) -> bool:
    """Return whether all values are objects of short texts and moderate numbers, as nearly all are."""
    if not _all_of(dict, values) or max(map(len, values), default=0) > MAX_KEYS:
        return False
    members = list(chain.from_iterable(map(dict.values, values)))
    if not set(map(type, members)) <= kinds or not _are_within_limits(members):
        return False
    # Thousands of objects have the same few keys.
    return _are_texts(list(set(chain.from_iterable(values))))


# --- dataclasses: the keys of an object are the names of the fields -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _ObjectShape:
    """Readers of an object's members, and factories of the members that it leaves out.

    A member with a plain default needs no factory: the default is an attribute of the class.
    """

    readers: tuple[tuple[str, ValueReader], ...]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


def _object_reader(kind: Any, readers: Mapping[str, ValueReader]) -> ValueReader:
    """Return the reader of the dataclass ``kind``, whose fields have these readers."""
    # Thousands of cases have the same keys in the same order, and need one shape.
    shape_of = lru_cache(maxsize=_MOST_SHAPES)(partial(_shape, kind, readers))
    make, make_many = _maker(kind), _maker_of_many(kind)

    def one(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        return make(_members(value, shape_of(tuple(value))))

    def many(values: list[Any]) -> list[Any]:
        """Return many objects, read one column of equal keys at a time, in their order."""
        alike: dict[tuple[Any, ...], list[Any]] = {}
        # The group of each value, so that its keys are hashed once.
        groups = [alike.setdefault(tuple(value), []) for value in values] if _all_of(dict, values) else []
        # Where nearly every object has keys of its own, columns save nothing.
        if not 0 < len(alike) <= _MOST_SHAPES:
            return [one(value) for value in values]
        for group, value in zip(groups, values, strict=True):
            group.append(value)
        for key, group in alike.items():
            group[:] = reversed(make_many(_columns(group, shape_of(key))))
        return [group.pop() for group in groups]

    return ValueReader(one, many)


def _members(value: dict[str, Any], shape: _ObjectShape) -> dict[str, Any]:
    """Return the checked members of one object."""
    members, name = value.copy(), ""
    try:
        for name, reader in shape.readers:
            members[name] = reader.one(value[name])
    except InvalidValue as error:
        raise error.inside(f".{name}") from None
    for name, factory in shape.factories:
        members[name] = factory()
    return members


def _columns(rows: list[dict[str, Any]], shape: _ObjectShape) -> list[dict[str, Any]]:
    """Return the checked members of objects with the same keys, read one column at a time."""
    members = list(map(dict.copy, rows))
    for name, reader in shape.readers:
        column = list(map(itemgetter(name), rows))
        read = reader.many(column)
        if read is not column:
            _set_all(members, name, read)
    for name, factory in shape.factories:
        _set_all(members, name, (factory() for _ in members))
    return members


def _set_all(rows: list[dict[str, Any]], name: str, values: Iterable[Any]) -> None:
    """Set one member of each row. The loop runs inside ``deque``, three times as fast as a loop of statements."""
    deque(map(dict.__setitem__, rows, repeat(name), values), maxlen=0)


def _shape(kind: Any, readers: Mapping[str, ValueReader], names: tuple[Any, ...]) -> _ObjectShape:
    """Return the shape of objects with these keys; raise InvalidValue for an unknown or a missing key."""
    for name in names:
        if name not in readers:
            raise InvalidValue(f" has an unknown key {reprlib.repr(name)}; known: {', '.join(readers)}.")
    absent, left_out = dataclasses.MISSING, [f for f in dataclasses.fields(kind) if f.name not in names]
    for field in left_out:
        if field.default is absent and field.default_factory is absent:
            raise InvalidValue(f" lacks the key {field.name!r}.")
    return _ObjectShape(
        readers=tuple((name, readers[name]) for name in names),
        factories=tuple((f.name, f.default_factory) for f in left_out if f.default_factory is not absent),
    )


def _maker(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes ``kind`` of checked members.

    It sets all members at once, because the ``__init__`` of a frozen dataclass makes a call for each field.
    """
    check = getattr(kind, "__post_init__", None)

    def make(members: dict[str, Any]) -> Any:
        """Return an instance with these members, and let ``check`` judge it."""
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", members)
        if check is not None:
            try:
                check(made)
            except ValueError as error:
                raise InvalidValue(f": {error}.") from None
        return made

    return make


def _maker_of_many(kind: Any) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """Return a function that makes many instances of ``kind``, whose members have the same names.

    ``kind.checked_together`` may name the members that its check reads. Each combination of them is then checked once.
    """
    make, names = _maker(kind), getattr(kind, "checked_together", ())
    if hasattr(kind, "__post_init__") and not names:
        return lambda rows: list(map(make, rows))

    def make_many(rows: list[dict[str, Any]]) -> list[Any]:
        """Return an instance for each row."""
        named = [name for name in names if rows and name in rows[0]]
        # The last row of each combination stands for all of them. A missing member has its default everywhere.
        samples = dict(zip(map(itemgetter(*named), rows), rows, strict=True)).values() if named else rows[:1]
        deque(map(make, samples), maxlen=0)
        made = list(map(object.__new__, repeat(kind, len(rows))))
        deque(map(object.__setattr__, made, repeat("__dict__"), rows), maxlen=0)
        return made

    return make_many

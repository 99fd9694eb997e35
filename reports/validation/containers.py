"""Optional values, lists, and objects whose keys are data."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, Final

from conformance.reports.validation import limits
from conformance.reports.validation.reader import Fault, Reader, all_of, each, wrong
from conformance.reports.validation.scalars import are_plain, are_texts, text

_QUOTES: Final = "'\""


def union_reader(readers: Mapping[type, Reader], *, optional: bool) -> Reader:
    """Of one type or of another; null as well where it is ``optional``."""
    only = next(iter(readers.values())) if len(readers) == 1 else None

    def one(value: Any) -> Any:
        if optional and value is None:
            return None
        chosen = only or readers.get(type(value))
        if chosen is None:
            raise wrong("a number or a string", value)
        return chosen.one(value)

    def many(values: list[Any]) -> list[Any]:
        if only is None or None in values:
            return [one(value) for value in values]
        return only.many(values)

    return Reader(one, many)


def tuple_reader(item: Reader) -> Reader:
    def one(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong("a list", value)
        if len(value) > limits.MAX_ITEMS:
            raise Fault(f" has more than {limits.MAX_ITEMS} items.")
        try:
            return tuple(item.many(value))
        except Fault:
            raise _first_fault(item, value) from None

    def many(values: list[Any]) -> list[Any]:
        if not all_of(list, values) or max(map(len, values), default=0) > limits.MAX_ITEMS:
            return [one(value) for value in values]
        flat = list(chain.from_iterable(values))
        read = item.many(flat)
        if read is flat:
            return [tuple(value) for value in values]
        rest = iter(read)
        return [tuple(islice(rest, len(value))) for value in values]

    return Reader(one, many)


def _first_fault(item: Reader, values: list[Any]) -> Fault:
    """What is wrong with the first value that is. It is looked for only once it is known that there is one."""
    for place, value in enumerate(values):
        try:
            item.one(value)
        except Fault as fault:  # noqa: PERF203 - it is wrong once
            return fault.inside(f"[{place}]")
    raise AssertionError("a value that was wrong is right")


def mapping_reader(item: Reader, kinds: frozenset[type]) -> Reader:
    """Of a mapping from texts to values of these scalar types, or to what ``item`` reads if there are none."""

    def one(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong("an object", value)
        if len(value) > limits.MAX_KEYS:
            raise Fault(f" has more than {limits.MAX_KEYS} keys.")
        read, name = {}, ""
        try:
            for name, member in value.items():
                read[text(name)] = item.one(member)
        except Fault as fault:
            raise fault.inside(f".{reprlib.repr(name).strip(_QUOTES)}") from None
        return read

    def many(values: list[Any]) -> list[Any]:
        return values if _are_plain(values, kinds) else [one(value) for value in values]

    return Reader(one, many if kinds else each(one))


def _are_plain(values: list[Any], kinds: frozenset[type]) -> bool:
    """Whether these are objects of short texts and moderate numbers, as nearly all are."""
    if not all_of(dict, values) or max(map(len, values), default=0) > limits.MAX_KEYS:
        return False
    members = list(chain.from_iterable(map(dict.values, values)))
    return set(map(type, members)) <= kinds and are_plain(members) and are_texts(list(chain.from_iterable(values)))

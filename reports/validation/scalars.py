"""Texts, numbers, truth values, and members of enums."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final

from conformance.reports.validation.limits import MAX_INT, MAX_TEXT
from conformance.reports.validation.reader import Fault, Reader, all_of, each, wrong


def text(value: Any) -> str:
    if type(value) is not str:
        raise wrong("a string", value)
    if len(value) > MAX_TEXT:
        raise Fault(f" is longer than {MAX_TEXT} characters.")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
        raise wrong("a whole number", value)
    return value


def _real(value: Any) -> float:
    if type(value) is not float:
        return float(_whole(value))
    if not math.isfinite(value):
        raise wrong("a finite number", value)
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise wrong("true or false", value)
    return value


def are_texts(values: list[Any]) -> bool:
    """Whether all are texts, and none too long."""
    return all_of(str, values) and max(map(len, values), default=0) <= MAX_TEXT


def are_plain(values: list[Any]) -> bool:
    """Whether all texts, floats and whole numbers among the values are such as a report may hold."""
    texts = [one for one in values if type(one) is str]
    reals = [one for one in values if type(one) is float]
    wholes = [one for one in values if type(one) is int]
    return (
        are_texts(texts)
        and all(map(math.isfinite, reals))
        and -MAX_INT <= min(wholes, default=0) <= max(wholes, default=0) <= MAX_INT
    )


def _texts(values: list[Any]) -> list[Any]:
    return values if are_texts(values) else [text(one) for one in values]


def _reals(values: list[Any]) -> list[Any]:
    return values if all_of(float, values) and are_plain(values) else [_real(one) for one in values]


def _booleans(values: list[Any]) -> list[Any]:
    return values if all_of(bool, values) else [_boolean(one) for one in values]


SCALARS: Final[dict[Any, Reader]] = {
    str: Reader(text, _texts),
    int: Reader(_whole, each(_whole)),
    float: Reader(_real, _reals),
    bool: Reader(_boolean, _booleans),
}


def enum_reader(kind: type[Enum]) -> Reader:
    known = {one.value: one for one in kind}

    def member(value: Any) -> Enum:
        if type(value) is str and value in known:
            return known[value]
        raise wrong("one of " + ", ".join(map(str, known)), value)

    def members(values: list[Any]) -> list[Any]:
        if set(values) <= known.keys() if all_of(str, values) else False:
            return [known[value] for value in values]
        return [member(value) for value in values]

    return Reader(member, members)

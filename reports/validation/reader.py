"""What reads values of one type, and how it says that one is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


class Fault(Exception):
    """What is wrong, and the way there from the innermost value outwards."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        self.way: list[str] = []

    def inside(self, step: str) -> Fault:
        self.way.append(step)
        return self

    def text(self, where: str) -> str:
        return f"{where}{''.join(reversed(self.way))}{self.sentence}"


def wrong(expected: str, value: Any) -> Fault:
    return Fault(f" must be {expected}, not {reprlib.repr(value)}.")


@dataclass(frozen=True)
class Reader:
    """Takes untrusted values of one type and returns them checked, or raises Fault.

    ``one`` reads a value. ``many`` reads a list of them at once, which is how twenty thousand cases are read in a
    tenth of a second: whether a column is of short texts is asked of the column, not of each text. Its result is the
    very list that it got when no value changed; its Fault tells that something is wrong, and not where.
    """

    one: Callable[[Any], Any]
    many: Callable[[list[Any]], list[Any]]


def each(one: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """``many`` of a reader that has nothing better than a call for each value."""
    return lambda values: [one(value) for value in values]


def all_of(kind: type, values: Iterable[Any]) -> bool:
    """Whether every value is of this very type: no bool among the numbers, no text that is more than a text."""
    return set(map(type, values)) <= {kind}

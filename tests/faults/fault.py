"""A fault as data, and the kinds of faults, each with its population, its behaviour and its direct calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .overriding import Behaviour

#: What is known of a kernel's arguments by their place, and of its results ("r").
Flags = Mapping[str, Sequence[str]]
#: A number or a word that a kind has many faults for, after a place.
Target = tuple[str, str]


@dataclass(frozen=True)
class Fault:
    """A broken kernel or derivative rule. ``place`` is an argument, a result or an input; ``detail`` a parameter."""

    family: str
    kind: str
    target: str
    place: str = ""
    detail: str = ""

    def __str__(self) -> str:
        rest = " ".join(filter(None, (self.place, self.detail)))
        return f"{self.family}.{self.kind} {self.target}{f' [{rest}]' if rest else ''}"

    @property
    def id(self) -> str:
        """Return a short id that depends on nothing but the fault."""
        return f"{self.family}-{hashlib.sha256(str(self).encode()).hexdigest()[:10]}"


class Hits:
    """Counts the calls in which an armed fault met its condition, and those that a kernel to refuse them computed.

    ``refused`` says that it refused one in whose place the fault has no result. ``unsound`` counts calls in which the
    healthy device gives another result for the layout than for contiguous tensors with the same values.
    """

    count = computed = unsound = 0
    refused = False

    def __call__(self) -> None:
        self.count += 1


@dataclass(frozen=True)
class Kind:
    """A kind of fault of kernels.

    ``targets`` yields places and details for a kernel with these flags. ``behave`` makes the behaviour, which calls its
    second argument when the fault's condition is met. ``needs`` says from recorded flags whether it can be met at all.
    ``variants`` changes the values of a direct call, by the names of arguments, so that the condition is met.
    """

    family: str
    name: str
    targets: Callable[[str, Flags], Iterator[Target]]
    behave: Callable[[Fault, Hits], Behaviour]
    needs: Callable[[Fault, Flags], bool]
    variants: Callable[[Fault, dict[str, Any]], Iterator[dict[str, Any]]]


FAMILIES = {
    "A": "argument ignored",
    "B": "input misread",
    "C": "output wrong somewhere",
    "D": "alias, copy and metadata",
    "E": "arithmetic",
    "F": "derivative",
    "G": "refusal swallowed",
    "H": "one dtype alone",
    "L": "one long axis",
    "M": "compiled code",
    "N": "a call in a sequence",
    "O": "another thread",
    "P": "two arguments at once",
    "Q": "small errors",
    "R": "arithmetic in 16 bits",
    "T": "time and order",
    "S": "state",
    "K": "collectives",
}


def size_class(flags: Sequence[str]) -> int:
    """Return the bit length of the largest number of elements among the flags."""
    return max((int(flag[1:]) for flag in flags if flag[:1] == "n" and flag[1:].isdigit()), default=0)

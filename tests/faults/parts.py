"""A part of the operators: their cases, and the kernels and derivative rules that are named after them.

A map of all cases takes minutes. With ``--part K/N`` the map has the cases of every N-th operator, and faults are drawn
of what these cases are there for: a kernel whose operator has its own cases in the part, and a rule that they reach.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from .fault import Fault
from .overloads import operator_of
from .recording import Map

#: Parts of an operator's name that PyTorch's kernels do not have.
_NOT_IN_KERNELS = ("operators", "nn", "functional")


@dataclass(frozen=True)
class Part:
    """Part ``number`` of ``count``, from 1."""

    number: int
    count: int

    @staticmethod
    def of(text: str) -> Part:
        """Return the part that K/N names; raise ArgumentTypeError if the text names none."""
        number, _, count = text.partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"expected K/N, such as 1/12, not {text}")
        return Part(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, case: str) -> bool:
        """Return whether it has the case of an operator: variants of an operator are in one part."""
        return zlib.crc32(names_of(case)[0].encode()) % self.count == self.number - 1

    def cases(self, cases: list[str]) -> list[str]:
        """Return its cases of operators."""
        return [case for case in cases if case.startswith("operators.") and self.has(case)]


def names_of(case: str) -> list[str]:
    """Return the names that the kernel of an operator's case may have, the shortest first.

    ``operators.linalg.norm.subgradients_at_zero[…]`` has ``linalg_norm`` and ``linalg_norm_subgradients_at_zero``.
    """
    words = [word for word in case.partition("[")[0].split(".") if word not in _NOT_IN_KERNELS]
    first = 2 if len(words) > 1 and words[0] in ("linalg", "fft", "special", "masked", "sparse", "signal") else 1
    return ["_".join(words[:end]) for end in range(first, len(words) + 1)]


def chosen(found: Map) -> Callable[[Fault], bool]:
    """Return a test of a fault: do the recorded cases contain those that are named after its target?"""
    names = {name for case in found.cases for name in names_of(case)}
    rules = {rule for record in found.cases.values() if record.own for rule in record.nodes}

    def is_chosen(fault: Fault) -> bool:
        if fault.family == "F":
            return fault.target in rules
        operators = {operator_of(fault.target), *found.callers(fault.target)}
        return any(name.partition("::")[2] in names for name in operators)

    return is_chosen

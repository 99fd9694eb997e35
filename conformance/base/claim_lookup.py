"""Lookup of the claim that holds for a cell, for declarations of accelerators and for those in reports.

A cell is written ``subject`` or ``subject[axes]``, such as ``operators.add[float32-training]``. A subject with ``*`` is
a shell-style pattern, and matches subjects with exactly the same axes. One rule decides: an exact cell wins over
patterns, and a longer pattern wins over a shorter one. Longest patterns of equal length have to agree.

This module is a leaf: it uses the standard library and ``conformance.base.errors`` only, and every room may import it.
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from conformance.base.errors import DeclarationError

SUPPORTED: Final = "supported"
UNSUPPORTED: Final = "unsupported"
UNDECLARED: Final = "undeclared"
#: The state that a lookup finds where the declaration says two different things of one cell.
CONTRADICTORY: Final = "contradictory"


@dataclass(frozen=True)
class FoundClaim:
    """State and detail that hold for a cell, and the written cells that say so, sorted.

    There are several written cells only if patterns of equal length agree. ``problem`` is a sentence for a
    contradictory claim, and empty for all others.
    """

    state: str
    detail: str = ""
    written: tuple[str, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.detail})" if self.detail else self.state


NOT_DECLARED: Final = FoundClaim(UNDECLARED)


@dataclass(frozen=True)
class _Pattern:
    """A pattern of a declaration with its compiled expression."""

    subject: str
    expression: re.Pattern[str]
    claim: FoundClaim


@dataclass
class _AxesPatterns:
    """The patterns for one choice of axes: in groups of equal length, the longest first."""

    groups: list[list[_Pattern]]
    #: Whether patterns of equal length say different things.
    disagrees: bool = field(init=False)

    def __post_init__(self) -> None:
        said = [{(pattern.claim.state, pattern.claim.detail) for pattern in group} for group in self.groups]
        self.disagrees = any(len(claims) > 1 for claims in said)

    def matching(self, subject: str) -> list[FoundClaim]:
        """Return the claims of the longest patterns that match the subject."""
        for group in self.groups:
            if claims := [pattern.claim for pattern in group if pattern.expression.match(subject)]:
                return claims
        return []


class ClaimLookup:
    """The written claims of one declaration, given as rows of cell, state and detail in any order."""

    def __init__(self, rows: Iterable[tuple[str, str, str]]) -> None:
        exact: defaultdict[str, list[FoundClaim]] = defaultdict(list)
        patterns: defaultdict[str, list[_Pattern]] = defaultdict(list)
        for cell, state, detail in dict.fromkeys(rows):
            claim = FoundClaim(state, detail, (cell,))
            subject, axes = split_cell(cell)
            if "*" in subject:
                patterns[axes].append(_Pattern(subject, re.compile(fnmatch.translate(subject)), claim))
            else:
                exact[cell].append(claim)
        self._exact = {cell: _agreed(cell, claims) for cell, claims in exact.items()}
        self._patterns = {axes: _AxesPatterns(_by_length(found)) for axes, found in patterns.items()}

    @property
    def exact_cells(self) -> Iterable[str]:
        """Return the cells that are written by name."""
        return self._exact.keys()

    def find(self, cell: str, in_reference: bool = True) -> FoundClaim:
        """Return the claim that holds for the cell; a contradiction is a state of its own.

        ``in_reference`` tells whether PyTorch's own CPU implements the cell. A pattern claims support only for cells
        in the reference: ``operators.*[float16]`` means every operator that PyTorch's CPU has in float16.
        """
        if (claim := self._exact.get(cell)) is not None:
            return claim
        subject, axes = split_cell(cell)
        patterns = self._patterns.get(axes)
        claims = patterns.matching(subject) if patterns else []
        if not claims:
            return NOT_DECLARED
        claim = claims[0] if len(claims) == 1 else _agreed(cell, claims)
        return NOT_DECLARED if claim.state == SUPPORTED and not in_reference else claim

    def claim(self, cell: str, in_reference: bool = True) -> FoundClaim:
        """Return the claim that holds for the cell; raise DeclarationError if the declaration contradicts itself."""
        claim = self.find(cell, in_reference)
        if claim.problem:
            raise DeclarationError(claim.problem)
        return claim

    def contradictions(self, cells: Iterable[str]) -> Iterator[str]:
        """Yield a sentence for each of the cells, and for each cell written by name, that has contradicting claims."""
        # Patterns hardly ever disagree. Most cells are answered without a search through patterns.
        disagreeing = {axes for axes, patterns in self._patterns.items() if patterns.disagrees}
        suspects = [cell for cell in cells if split_cell(cell)[1] in disagreeing] if disagreeing else []
        for cell in dict.fromkeys((*self._exact, *suspects)):
            if problem := self.find(cell).problem:
                yield problem


def split_cell(cell: str) -> tuple[str, str]:
    """Return the subject of a written cell and its axes without brackets, or without axes an empty string."""
    subject, _, axes = cell.partition("[")
    return subject, axes.removesuffix("]")


def _by_length(patterns: list[_Pattern]) -> list[list[_Pattern]]:
    # Alphabetical order within a length keeps answers independent of the order of the declaration.
    ordered = sorted(patterns, key=lambda pattern: (-len(pattern.subject), pattern.subject))
    return [list(group) for _, group in groupby(ordered, key=lambda pattern: len(pattern.subject))]


def _agreed(cell: str, claims: list[FoundClaim]) -> FoundClaim:
    """Return what claims of equal weight say of the cell: one claim, or a contradictory one."""
    written = tuple(sorted({name for claim in claims for name in claim.written}))
    if len({(claim.state, claim.detail) for claim in claims}) == 1:
        return replace(claims[0], written=written)
    if written == (cell,):
        problem = f"{cell} is declared twice and differently: {_joined(map(str, claims), ' and ')}; keep one of them."
    else:
        said = _joined((f"{claim.written[0]} is {claim}" for claim in claims), ", ")
        problem = f"{cell} is matched by contradicting patterns of equal length: {said}; declare it by name."
    return FoundClaim(CONTRADICTORY, problem=problem)


def _joined(texts: Iterable[str], separator: str) -> str:
    return separator.join(sorted(texts))

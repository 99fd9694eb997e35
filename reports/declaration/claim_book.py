"""What a report's declaration says of a cell, looked up twenty thousand times."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from conformance.reports.model import DeclaredCell

SUPPORTED: Final = "supported"
UNSUPPORTED: Final = "unsupported"
UNDECLARED: Final = "undeclared"


@dataclass(frozen=True)
class Claim:
    """A state, and how it is supported or why it is not."""

    state: str
    detail: str = ""


SILENCE: Final = Claim(UNDECLARED)


class ClaimBook:
    """The claims of one declaration: by name first, then by the longest pattern that reaches the cell."""

    def __init__(self, cells: Iterable[DeclaredCell]) -> None:
        self.written = {row.cell: Claim(row.state, row.detail) for row in cells}
        patterns: defaultdict[str, list[tuple[str, re.Pattern[str], Claim]]] = defaultdict(list)
        for cell, claim in self.written.items():
            subject, _, axes = cell.partition("[")
            if "*" in subject:
                patterns[axes].append((subject, re.compile(fnmatch.translate(subject)), claim))
        # The longest first: the first that matches is the one that holds.
        self._patterns = {axes: sorted(found, key=lambda one: -len(one[0])) for axes, found in patterns.items()}
        self._denied = {cell for cell, claim in self.written.items() if claim.state == UNSUPPORTED}
        self._denying = {axes for axes, found in patterns.items() if any(one.state == UNSUPPORTED for *_, one in found)}

    def denies_any(self, cells: Iterable[str], in_reference: bool = True) -> bool:
        """Whether one of the cells is declared unsupported. Declarations deny little: most cells need no search."""
        if not self._denied.isdisjoint(cells):
            return True
        return bool(self._denying) and any(self._is_denied_by_pattern(cell, in_reference) for cell in cells)

    def _is_denied_by_pattern(self, cell: str, in_reference: bool) -> bool:
        return cell.partition("[")[2] in self._denying and self.claim(cell, in_reference).state == UNSUPPORTED

    def claim(self, cell: str, in_reference: bool = True) -> Claim:
        """The claim that holds for the cell. A pattern never claims what PyTorch's own CPU has not."""
        if cell in self.written:
            return self.written[cell]
        subject, _, axes = cell.partition("[")
        for _, pattern, claim in self._patterns.get(axes, ()):
            if pattern.match(subject):
                return SILENCE if claim.state == SUPPORTED and not in_reference else claim
        return SILENCE

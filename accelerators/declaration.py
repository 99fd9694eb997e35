"""Declarations: the claims of an accelerator, cell by cell, merged from three sources.

A claim is *supported* (native, emulated, or computed on the host), *unsupported* (by the hardware, or not yet, with a
reason), or *undeclared*. Undeclared is a state of its own and never means unsupported. There are three sources, and
later ones win: the DeepSpeed-style methods, the accelerator's own ``capabilities``, and a TOML file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from conformance.accelerators.capabilities import Cell
from conformance.base.claim_lookup import ClaimLookup, FoundClaim
from conformance.base.errors import DeclarationError


class State(Enum):
    """State of a claim."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNDECLARED = "undeclared"


class Detail(Enum):
    """Kind of support, or reason for its lack."""

    NATIVE = "native"
    EMULATED = "emulated"
    HOST = "host"
    HARDWARE = "hardware"
    NOT_YET = "not-yet"


class ClaimSource(Enum):
    """Source of a claim. Later members override earlier ones."""

    METHODS = "methods"
    CAPABILITIES = "capabilities"
    FILE = "file"


_DETAILS: dict[State, set[Detail | None]] = {
    State.SUPPORTED: {Detail.NATIVE, Detail.EMULATED, Detail.HOST},
    State.UNSUPPORTED: {Detail.HARDWARE, Detail.NOT_YET},
    State.UNDECLARED: {None},
}


@dataclass(frozen=True)
class Claim:
    """The declared state of one cell."""

    state: State
    detail: Detail | None = None
    reason: str = ""
    source: ClaimSource | None = None

    def __post_init__(self) -> None:
        if self.detail not in _DETAILS[self.state]:
            raise DeclarationError(f"a claim cannot be {self.state.value} and {self.detail and self.detail.value}")
        if self.state is State.UNSUPPORTED and not self.reason:
            raise DeclarationError("an unsupported claim needs a reason; say why the hardware or software cannot do it")


UNDECLARED = Claim(State.UNDECLARED)


def supported(
    detail: Detail = Detail.NATIVE, source: ClaimSource = ClaimSource.CAPABILITIES, reason: str = ""
) -> Claim:
    """Return a claim of support. A reason says what is known to be wrong with it, or how it is done."""
    return Claim(State.SUPPORTED, detail, reason, source)


def unsupported(reason: str, detail: Detail = Detail.HARDWARE, source: ClaimSource = ClaimSource.CAPABILITIES) -> Claim:
    """Return a claim that support is missing, with the reason."""
    return Claim(State.UNSUPPORTED, detail, reason, source)


@dataclass(frozen=True)
class Declaration:
    """All claims of one accelerator. Exact cells win over patterns; a longer pattern wins over a shorter one."""

    exact: Mapping[Cell, Claim] = field(default_factory=dict)
    patterns: Mapping[Cell, Claim] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[tuple[Cell, Claim]]) -> Declaration:
        """Return the declaration of one source; raise DeclarationError for a cell with two different claims."""
        exact: dict[Cell, Claim] = {}
        patterns: dict[Cell, Claim] = {}
        for cell, claim in claims:
            table = patterns if cell.is_pattern else exact
            if cell in table and table[cell] != claim:
                both = f"{_text(table[cell])} and {_text(claim)}"
                raise DeclarationError(f"{cell} is declared twice and differently: {both}; keep one of them.")
            table[cell] = claim
        return cls(exact, patterns)

    def overridden_by(self, later: Declaration) -> Declaration:
        """Return this declaration with the claims of ``later`` in place of its own for the same cells."""
        return Declaration({**self.exact, **later.exact}, {**self.patterns, **later.patterns})

    def claim(self, cell: Cell, *, in_reference: bool = True) -> Claim:
        """Return the claim that holds for the cell; see ``conformance.base.claim_lookup`` for the rule.

        ``in_reference`` tells whether PyTorch's own CPU implements the cell. A pattern claims support only for such
        cells: ``operators.*`` for float16 means every operator that PyTorch's CPU has in float16. Raises
        DeclarationError if patterns of equal length contradict each other.
        """
        found = self._lookup.claim(str(cell), in_reference)
        return self._written[found.written[0]] if found.written else UNDECLARED

    @cached_property
    def _written(self) -> Mapping[str, Claim]:
        return {str(cell): claim for cell, claim in {**self.patterns, **self.exact}.items()}

    @cached_property
    def _lookup(self) -> ClaimLookup:
        # Built once: a run looks up every cell of its plan.
        return ClaimLookup((cell, claim.state.value, _detail(claim)) for cell, claim in self._written.items())

    def supports(self, cell: Cell, *, in_reference: bool = True) -> bool:
        """Return whether the claim that holds for the cell is a claim of support."""
        return self.claim(cell, in_reference=in_reference).state is State.SUPPORTED

    @property
    def cells(self) -> dict[Cell, Claim]:
        """Return every written claim, including patterns, sorted by cell."""
        return dict(sorted({**self.patterns, **self.exact}.items(), key=lambda item: str(item[0])))

    @property
    def sha256(self) -> str:
        """Return a hash of all cells, states, details and reasons; sources do not count."""
        rows = [
            [str(cell), claim.state.value, claim.detail and claim.detail.value, claim.reason]
            for cell, claim in self.cells.items()
        ]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _detail(claim: Claim) -> str:
    return claim.detail.value if claim.detail else ""


def _text(claim: Claim) -> str:
    return str(FoundClaim(claim.state.value, _detail(claim)))

"""Defects so narrow that one check alone sees them: they show that each check is needed."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import answers, memory, numbers, pinned, probes

MUTANTS: tuple[Mutant, ...] = (
    *answers.MUTANTS,
    *memory.MUTANTS,
    *numbers.MUTANTS,
    *pinned.MUTANTS,
    *probes.MUTANTS,
)

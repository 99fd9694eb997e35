"""Defects so narrow that one check alone sees them: they show that each check is needed."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import answers, events, flags, memory, numbers, pinned, probes, streams, synchronizing

MUTANTS: tuple[Mutant, ...] = (
    *answers.MUTANTS,
    *events.MUTANTS,
    *flags.MUTANTS,
    *memory.MUTANTS,
    *numbers.MUTANTS,
    *pinned.MUTANTS,
    *probes.MUTANTS,
    *streams.MUTANTS,
    *synchronizing.MUTANTS,
)

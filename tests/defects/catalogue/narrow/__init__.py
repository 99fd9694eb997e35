"""Defects so narrow that one check alone sees them: they show that each check is needed."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import (
    answers,
    effects,
    events,
    flags,
    graphs,
    memory,
    numbers,
    pinned,
    probes,
    random_numbers,
    selection,
    streams,
    synchronizing,
)

MUTANTS: tuple[Mutant, ...] = (
    *answers.MUTANTS,
    *effects.MUTANTS,
    *events.MUTANTS,
    *flags.MUTANTS,
    *graphs.MUTANTS,
    *memory.MUTANTS,
    *numbers.MUTANTS,
    *pinned.MUTANTS,
    *probes.MUTANTS,
    *random_numbers.MUTANTS,
    *selection.MUTANTS,
    *streams.MUTANTS,
    *synchronizing.MUTANTS,
)

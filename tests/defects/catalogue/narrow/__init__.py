"""Defects so narrow that one check alone sees them: they show that each check is needed."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import answers

MUTANTS: tuple[Mutant, ...] = (*answers.MUTANTS,)

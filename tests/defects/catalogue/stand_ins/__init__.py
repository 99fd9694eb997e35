"""Defects of objects that stand in for an accelerator, without a device. Each names the one case that must be red."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import allocators, data, late, members, operators, workloads

MUTANTS: tuple[Mutant, ...] = (
    *members.MUTANTS,
    *late.MUTANTS,
    *allocators.MUTANTS,
    *data.MUTANTS,
    *operators.MUTANTS,
    *workloads.MUTANTS,
)

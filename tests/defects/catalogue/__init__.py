"""All mutants, by the part of the accelerator they break, and those of stand-ins."""

from __future__ import annotations

from tests.defects.mutant import Mutant

from . import (
    claims,
    collectives,
    compressed,
    devices,
    evoformer,
    generation,
    host_kernels,
    inference,
    kernels,
    linear,
    members,
    memory,
    narrow,
    operators,
    parallel,
    processes,
    quantizers,
    random_numbers,
    stand_ins,
    streams,
    tuning,
    worlds,
)

MUTANTS: tuple[Mutant, ...] = (
    *devices.MUTANTS,
    *members.MUTANTS,
    *streams.MUTANTS,
    *memory.MUTANTS,
    *random_numbers.MUTANTS,
    *operators.MUTANTS,
    *claims.MUTANTS,
    *processes.MUTANTS,
    *narrow.MUTANTS,
    *collectives.MUTANTS,
    *parallel.MUTANTS,
    *kernels.MUTANTS,
    *host_kernels.MUTANTS,
    *quantizers.MUTANTS,
    *inference.MUTANTS,
    *evoformer.MUTANTS,
    *linear.MUTANTS,
    *generation.MUTANTS,
    *compressed.MUTANTS,
    *tuning.MUTANTS,
    *worlds.MUTANTS,
    *stand_ins.MUTANTS,
)


def by_name(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)

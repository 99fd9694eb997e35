"""Members that do nothing where only their effect tells."""

from __future__ import annotations

from typing import Any

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant

NARROW = "DeepSpeed 437226bf2, ac935c7fd: members narrower than the interface"


def effect(name: str, precedent: str, caught_by: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, "stub", precedent, Where.DEVICE, caught_by, **fault))


MUTANTS = (
    effect("build_extension() is None", "DeepSpeed's SUPA builders: 62 names promised, 42 of them nowhere",
           "accelerator.effect.answer[build_extension]", context=accelerator(build_extension=constant(None))),
    effect("empty_cache gives nothing back", NARROW, "accelerator.effect.empty_cache",
           context=accelerator(empty_cache=constant(None))),
    effect("reset_max_memory_cached resets nothing", NARROW, "accelerator.effect.reset_max_memory_cached",
           context=accelerator(reset_max_memory_cached=constant(None))),
    effect("register_host_memory answers a status", "DeepSpeed 7dfa67aea",
           "accelerator.effect.register_host_memory", context=accelerator(register_host_memory=constant(0))),
)  # fmt: skip

"""The kill matrix: which checks have a mutant that no other check of their area sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from . import bench
from .measuring import MATRIX_AREAS, Measured, Result, is_healthy
from .mutant import Mutant


class Standing(Enum):
    """How well a check is proved."""

    ALONE = "has a mutant that only it catches"
    SHARES = "shares its mutants"
    OBJECT = "has defects of stand-in objects only"
    NONE = "has no mutant"


@dataclass(frozen=True)
class Check:
    """One case function. ``alone`` are the mutants only it catches, ``shared`` the others it catches."""

    name: str
    alone: tuple[str, ...]
    shared: tuple[str, ...]
    objects: tuple[str, ...]
    #: Checks that catch whatever it catches.
    companions: tuple[str, ...] = ()

    @property
    def standing(self) -> Standing:
        if self.alone:
            return Standing.ALONE
        if self.shared:
            return Standing.SHARES
        return Standing.OBJECT if self.objects else Standing.NONE


def checks(measured: Measured, stand_ins: Sequence[Mutant]) -> list[Check]:
    """Return every check of the matrix areas, in plan order."""
    # A defect of a stand-in goes through one case alone, which says nothing of other checks.
    alone = {mutant.name for mutant in stand_ins}
    rows = []
    for area in MATRIX_AREAS:
        compared = [result for result in measured.results if not (is_healthy(result.name) or result.name in alone)]
        catchers = {result.name: _catchers(result, area) for result in compared}
        rows += [_check(name, catchers, stand_ins) for name in measured.checks if bench.area_of(name) == area]
    return rows


def _catchers(result: Result, area: str) -> frozenset[str]:
    return frozenset(bench.function_of(red.case) for red in result.reds if bench.area_of(red.case) == area)


def _check(name: str, catchers: Mapping[str, frozenset[str]], stand_ins: Sequence[Mutant]) -> Check:
    mine = {mutant: others for mutant, others in catchers.items() if name in others}
    alone = tuple(mutant for mutant, others in mine.items() if others == {name})
    shared = tuple(mutant for mutant in mine if mutant not in alone)
    objects = tuple(mutant.name for mutant in stand_ins if bench.function_of(mutant.fault.caught_by) == name)
    always = frozenset.intersection(*mine.values()) - {name} if mine and not alone else frozenset()
    return Check(name, alone, shared, objects, tuple(sorted(always)))

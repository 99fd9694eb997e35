"""The kill matrix: which checks have a mutant that no other check of their area sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from . import bench
from .measuring import HEALTHY, MATRIX_AREAS, Measured, Result
from .objects import ObjectDefect


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


def checks(measured: Measured, objects: Sequence[ObjectDefect]) -> list[Check]:
    """Every check of the matrix areas, in plan order."""
    rows = []
    for area in MATRIX_AREAS:
        catchers = {result.name: _catchers(result, area) for result in measured.results if result.name != HEALTHY}
        rows += [_check(name, catchers, objects) for name in measured.checks if bench.area_of(name) == area]
    return rows


def _catchers(result: Result, area: str) -> frozenset[str]:
    return frozenset(bench.function_of(red.case) for red in result.reds if bench.area_of(red.case) == area)


def _check(name: str, catchers: Mapping[str, frozenset[str]], objects: Sequence[ObjectDefect]) -> Check:
    mine = {mutant: others for mutant, others in catchers.items() if name in others}
    alone = tuple(mutant for mutant, others in mine.items() if others == {name})
    shared = tuple(mutant for mutant in mine if mutant not in alone)
    stand_ins = tuple(one.name for one in objects if bench.function_of(one.case) == name)
    always = frozenset.intersection(*mine.values()) - {name} if mine and not alone else frozenset()
    return Check(name, alone, shared, stand_ins, tuple(sorted(always)))

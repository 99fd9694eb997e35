"""One defective accelerator, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conformance.accelerators.claims import Capabilities
from conformance.accelerators.declaration import Declaration
from conformance.accelerators.registry import resolve
from conformance.plan.run_options import Strictness
from conformance.plan.selection import matches
from conformance.reports.verdict import Reason
from tests.defects.faults import Fault


class How(Enum):
    """Where a mutant lives."""

    #: In a forked copy of a process that has everything loaded: most defects.
    FORK = "fork"
    #: In a real ``pytest --accelerator=…`` run: defects that end or block their process.
    PYTEST = "pytest"


def _cpu_declaration() -> Declaration:
    return resolve("cpu").static_declaration


@dataclass(frozen=True)
class StandIn:
    """An object in the accelerator's place, for which the host computes.

    ``make`` builds a sound one, which is entered while a case runs if it is a dispatch mode. ``context`` is entered
    around a case's body on a sound one. ``red_when_sound`` are cases that a sound one fails, because it does not
    promise what they check.
    """

    name: str
    make: Callable[[], Any]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    declared: Callable[[], Declaration] = _cpu_declaration
    red_when_sound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """A fault of the simulated accelerator, claims that are false of it, or a fault of a stand-in.

    ``fault.caught_by`` is the case (or a pattern of cases of which at least one) that must fail. ``may_touch`` are
    patterns of all other cases that depend on what is broken and may fail as well: a failure outside is a false
    accusation. ``also_run`` are cases beyond those that every mutant goes through. ``reason`` is how the case must
    fail, and ``message`` a part of what it must say, where that matters. ``broken`` builds a defective ``stand_in``;
    without it, ``fault.context`` is around the body of the case. ``peer_misses`` marks what another suite, TorchCTS,
    was seen not to notice.
    """

    fault: Fault
    may_touch: tuple[str, ...] = ()
    also_run: tuple[str, ...] = ()
    claims: Capabilities = field(default_factory=frozenset)
    strictness: Strictness = Strictness.CI
    reason: Reason | None = None
    message: str = ""
    stand_in: StandIn | None = None
    broken: Callable[[], Any] | None = None
    how: How = How.FORK
    peer_misses: bool = False

    @property
    def name(self) -> str:
        return self.fault.name

    @property
    def family(self) -> str:
        return self.fault.family

    def expects(self, case_id: str) -> bool:
        return matches(self.fault.caught_by, case_id)

    def may_fail(self, case_id: str) -> bool:
        return self.expects(case_id) or any(matches(pattern, case_id) for pattern in self.may_touch)


#: So many mutants of each family are tried with every change; the others when somebody asks for all.
_OF_A_FAMILY = 2


def fast_subset(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Return the first mutants of each family, all that another suite does not notice, and all of stand-ins."""
    seen: Counter[str] = Counter()
    chosen = []
    for mutant in mutants:
        seen[mutant.family] += 1
        if mutant.peer_misses or mutant.stand_in or seen[mutant.family] <= _OF_A_FAMILY:
            chosen.append(mutant)
    return chosen

"""A fault from a table of pairs: what is broken, and where it is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.defects import faults as simulated
from tests.faults.fault import Fault

#: Places where a switch acts, by name: a device, a kind of stream, threads, one or two devices, some calls.
PLACES: Mapping[str, Mapping[str, float]] = {
    "everywhere": {},
    "device 0": {"where_device": 0},
    "device 1": {"where_device": 1},
    "default stream": {"where_stream": 0},
    "side streams": {"where_stream": 1},
    "this thread": {"where_thread": 0},
    "other threads": {"where_thread": 1},
    "one device": {"where_crossing": 0},
    "two devices": {"where_crossing": 1},
}
#: Calls in which a switch acts.
CALLS: Mapping[str, Mapping[str, float]] = {
    "always": {},
    "every second": {"where_every": 2},
    "every third": {"where_every": 3},
    "after 2": {"where_after": 2},
    "after 10": {"where_after": 10},
}
#: How often replaced members were called.
MEMBER_CALLS = [0]
#: A direct call: it returns what can be observed.
Probe = Callable[[], Any]


@dataclass(frozen=True)
class Part:
    """What can be broken: a switch or a member, its direct call, the places, and the cases on the subject."""

    name: str
    probe: Probe
    cases: tuple[str, ...]
    places: tuple[str, ...]
    switches: Mapping[str, float] = field(default_factory=dict)
    members: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    calls: tuple[str, ...] = tuple(CALLS)


@dataclass(frozen=True)
class Pair:
    """A part at a place, in some calls."""

    family: str
    part: Part
    place: str
    calls: str

    @property
    def fault(self) -> Fault:
        """Return the fault as data, with its stable id."""
        return Fault(self.family, self.part.name, self.place, "", self.calls)

    def armed(self) -> AbstractContextManager[Any]:
        """Break the simulated accelerator inside the context."""
        switches = {**self.part.switches, **PLACES[self.place], **CALLS[self.calls]}
        where = simulated.Where.DEVICE
        return simulated.armed(
            simulated.Fault(
                str(self.fault), self.family, "generated", where, "", switches=switches, members=self.part.members
            )
        )


def population(family: str, parts: tuple[Part, ...]) -> Iterator[Pair]:
    """Yield every part at every one of its places, in each of its calls."""
    for part in parts:
        for place, calls in itertools.product(part.places, part.calls):
            yield Pair(family, part, place, calls)


def hits() -> int:
    """Return how often the armed fault has acted."""
    return int(simulated.started().core.switch_hits()) + MEMBER_CALLS[0]

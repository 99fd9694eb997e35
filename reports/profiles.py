"""Profiles: what a badge stands for, as pure predicates over case records.

``core`` ⊂ ``inference``, ``core`` ⊂ ``training`` ⊂ ``distributed``, and ``full`` is everything. A record is a mapping
with ``area``, ``tier``, ``axes``, ``level`` and, where it has any, ``requires``, as the manifest holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from conformance.errors import UnknownName

Record = Mapping[str, Any]

#: Areas that are about several ranks, whatever a case of them needs.
DISTRIBUTED_AREAS = frozenset(
    {"comm", "compression", "moe", "pipe", "model_parallelism", "runtime", "sequence_parallelism", "ulysses_alst"}
)
#: What a case on ranks requires, in areas that have others as well. Probes require what they look for.
RANKS = "comm"
PROBES = "capabilities"


@dataclass(frozen=True)
class Profile:
    """A named set of cases. ``parents`` are the profiles that it contains."""

    name: str
    doc: str
    parents: tuple[str, ...]
    own: Callable[[Record], bool]


#: The one axis that profiles look at.
MODE: Final = "mode"


def _mode(record: Record) -> str | None:
    mode = record["axes"].get(MODE)
    return None if mode is None else str(mode)


def on_ranks(area: str, requires: Iterable[str]) -> bool:
    """Whether a case is about several ranks."""
    return area in DISTRIBUTED_AREAS or (area != PROBES and RANKS in requires)


def _is_core(record: Record) -> bool:
    return bool(record["level"] == "core")


def _is_inference(record: Record) -> bool:
    return not _is_distributed(record) and _mode(record) in (None, "inference")


def _is_training(record: Record) -> bool:
    return not _is_distributed(record) and _mode(record) in (None, "training")


def _is_distributed(record: Record) -> bool:
    return on_ranks(record["area"], record.get("requires", ()))


def _is_any(_record: Record) -> bool:
    return True


#: From the least to the most; the badge shows the last one that is green.
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("core", "The mandatory core that nobody can declare away.", (), _is_core),
        Profile("inference", "Running models forward, on one device.", ("core",), _is_inference),
        Profile("training", "Running models forward and backward, on one device.", ("core",), _is_training),
        Profile("distributed", "Training on several devices.", ("training",), _is_distributed),
        Profile("full", "Everything.", ("inference", "distributed"), _is_any),
    )
}


def find_profile(name: str) -> Profile:
    """The profile of that name; an unknown name is an error with suggestions."""
    try:
        return PROFILES[name]
    except KeyError:
        raise UnknownName("profile", name, PROFILES) from None


def contained(name: str) -> tuple[str, ...]:
    """The profile and all that it contains, the profile itself first."""
    found = [name]
    for one in found:
        found += [parent for parent in find_profile(one).parents if parent not in found]
    return tuple(found)


def in_profile(name: str, record: Record) -> bool:
    """Whether the case belongs to the profile, by itself or through one that the profile contains."""
    profile = find_profile(name)
    return profile.own(record) or any(in_profile(parent, record) for parent in profile.parents)


@dataclass(frozen=True)
class Standing:
    """How far a profile is verified: passes over claimed cases, and whether everything claimed passed."""

    name: str
    verified: int
    claimed: int
    failed: int
    green: bool


@dataclass(frozen=True)
class Tally:
    """Planned cases as a badge sees them: so many that differ in nothing that counts."""

    record: Record
    claimed: bool
    passed: bool
    failed: bool
    number: int = 1


def standing(name: str, tallies: Iterable[Tally]) -> Standing:
    """A profile is green when every claimed case of it passed, none failed, and it verified a case of its own.

    The last rule keeps a run without one distributed case from being called ``distributed``.
    """
    profile = find_profile(name)
    inside = [tally for tally in tallies if in_profile(name, tally.record)]
    verified = sum(tally.number for tally in inside if tally.passed)
    claimed = sum(tally.number for tally in inside if tally.claimed)
    failed = sum(tally.number for tally in inside if tally.failed)
    own = any(tally.passed and profile.own(tally.record) for tally in inside)
    return Standing(name, verified, claimed, failed, own and not failed and verified == claimed)


def standings(tallies: Iterable[Tally]) -> tuple[Standing, ...]:
    """Every profile's standing, from the least to the most. A profile is green only if all that it contains are."""
    known = list(tallies)
    alone = {name: standing(name, known) for name in PROFILES}
    green = frozenset(name for name in PROFILES if _all_green(name, alone))
    return tuple(Standing(s.name, s.verified, s.claimed, s.failed, s.name in green) for s in alone.values())


def _all_green(name: str, alone: Mapping[str, Standing]) -> bool:
    return alone[name].green and all(_all_green(parent, alone) for parent in PROFILES[name].parents)


def badge(profiles: Iterable[Standing]) -> str | None:
    """The highest profile that is fully green."""
    green = [one.name for one in profiles if one.green]
    return green[-1] if green else None


@dataclass(frozen=True)
class Policy:
    """The demands of one profile.

    ``max_age`` counts from the end of the run to the gate; ``max_flaky`` is how many cases may be waived as flaky.
    """

    profile: str
    max_age: timedelta = timedelta(days=90)
    max_flaky: int = 10


#: The smaller a profile, the less may be uncertain in it.
_MAX_FLAKY: Final = {"core": 0, "inference": 5, "training": 5, "distributed": 10, "full": 10}

POLICIES: Final[dict[str, Policy]] = {name: Policy(name, max_flaky=_MAX_FLAKY[name]) for name in PROFILES}


def find_policy(profile: str) -> Policy:
    """The policy of a profile; an unknown name is an error with suggestions."""
    return POLICIES[find_profile(profile).name]


def containing(profile: str) -> tuple[str, ...]:
    """The profiles whose cases hold all of this one's."""
    return tuple(name for name in PROFILES if profile in contained(name))

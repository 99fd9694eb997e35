"""Profiles: the sets of cases that badges stand for, as pure predicates over planned cases.

``core`` ⊂ ``inference``, ``core`` ⊂ ``training`` ⊂ ``distributed``, and ``full`` holds every case. ``standard`` has the
cases that detect most per second: a first answer in minutes, and no badge.

A profile is green if everything that is claimed of it passes, and if enough of it is claimed. Without the second
condition a declaration of three cells would earn every profile.
Cases that are not about the device belong to ``full`` alone, and count in no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from conformance.base.errors import UnknownName
from conformance.reports.breadth import area_shares, claimed_cells, common_numbers, reduced_shares
from conformance.reports.groups import CaseGroup
from conformance.reports.planned import PlannedCase
from conformance.reports.standard import standard_ids
from conformance.reports.totals import total


@dataclass(frozen=True)
class Profile:
    """Profile: a named set of cases. ``parents`` are the profiles that it contains.

    ``needs`` are capabilities that have to be claimed. ``areas`` are those of which at least ``MINIMUM_SHARE`` of the
    profile's own cases has to be claimed; None means every area. ``trains``: a dtype of reduced precision that is
    claimed for the operators' inference has to be claimed for their training. A profile without ``badge`` is a choice
    of cases for a quick answer; its result is shown, and it is no level of support.
    """

    name: str
    doc: str
    parents: tuple[str, ...]
    own: Callable[[PlannedCase], bool]
    needs: tuple[str, ...] = ()
    areas: frozenset[str] | None = frozenset()
    trains: bool = False
    badge: bool = True


#: The tier of cases that an ordinary run leaves out.
DEEP: Final = "deep"
#: Areas that no profile requires in breadth. Two read counters of memory and time, and a device may have none. Bits
#: that do not depend on the surroundings are a contract of their own. Not every device is torch's accelerator. Calls at
#: real sizes need the dtypes of large models.
_OPTIONAL: Final = frozenset(
    {"autotuning", "profiling", "invariance", "torch_accelerator", "symmetric_memory", "calls"}
)
#: Share of an area's cases that a profile requires to be claimed, in float32 and without a dtype.
MINIMUM_SHARE: Final = 0.5
#: The share of an area with fewer cases than this says nothing.
_FEWEST: Final = 4
#: Areas that every device has a part of, on one device.
_BASIC_AREAS: Final = frozenset({"accelerator", "operators", "workloads"})
#: The collectives that the engines for distributed training use.
_COLLECTIVES: Final = ("comm", "comm.average", "comm.rooted", "comm.all-to-all", "comm.point-to-point")


def _mode(planned: PlannedCase) -> str | None:
    return planned.axes.get("mode")


def _is_core(planned: PlannedCase) -> bool:
    return planned.of_device and planned.level == "core"


def _is_inference(planned: PlannedCase) -> bool:
    return planned.of_device and not planned.distributed and _mode(planned) in (None, "inference")


def _is_training(planned: PlannedCase) -> bool:
    return planned.of_device and not planned.distributed and _mode(planned) in (None, "training")


def _is_distributed(planned: PlannedCase) -> bool:
    return planned.of_device and planned.distributed


def _is_standard(planned: PlannedCase) -> bool:
    return planned.of_device and planned.id in standard_ids()


def _is_any(_planned: PlannedCase) -> bool:
    return True


#: Profiles from the smallest to the largest. The badge shows the last green one.
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("core", "The mandatory core, which no declaration can exclude.", (), _is_core),
        Profile(
            "standard",
            "The cases that detect most per second, of every area: a first answer in two minutes. It earns no badge.",
            ("core",),
            _is_standard,
            badge=False,
        ),
        Profile("inference", "Running models forward, on one device.", ("core",), _is_inference, areas=_BASIC_AREAS),
        Profile(
            "training",
            "Running models forward and backward, on one device.",
            ("core",),
            _is_training,
            areas=_BASIC_AREAS,
            trains=True,
        ),
        Profile(
            "distributed",
            "Training on several devices.",
            ("training",),
            _is_distributed,
            needs=_COLLECTIVES,
            areas=None,
        ),
        Profile("full", "Everything.", ("standard", "inference", "distributed"), _is_any, areas=None, trains=True),
    )
}


def find_profile(name: str) -> Profile:
    """Return the profile of that name; UnknownName with suggestions if there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise UnknownName("profile", name, PROFILES) from None


def contained(name: str) -> tuple[str, ...]:
    """Return the names of the profile and of all profiles that it contains, its own first."""
    found = [name]
    for profile in found:
        found += [parent for parent in find_profile(profile).parents if parent not in found]
    return tuple(found)


def in_profile(name: str, planned: PlannedCase) -> bool:
    """Return whether the case belongs to the profile, or to one that the profile contains.

    A case of the deep tier, which an ordinary run leaves out, belongs to none.
    """
    profile = find_profile(name)
    if planned.tier == DEEP:
        return False
    return profile.own(planned) or any(in_profile(parent, planned) for parent in profile.parents)


@dataclass(frozen=True)
class ProfileResult:
    """Verification of one profile by one run: passes over claimed cases, and whether the profile is reached.

    ``lacks`` says what is missing in breadth, one phrase for each capability and area.
    """

    name: str
    verified: int
    claimed: int
    failed: int
    green: bool
    lacks: tuple[str, ...] = ()


def profile_results(groups: Iterable[CaseGroup], lost: Iterable[PlannedCase] = ()) -> tuple[ProfileResult, ...]:
    """Return the result of every profile, from the smallest to the largest.

    ``lost`` are planned cases without a verdict; they count as claimed. A profile is green only if every profile that
    it contains, and that earns a badge, is green too.
    """
    known, missing = common_numbers(groups), tuple(lost)
    alone = {name: _result(profile, known, missing) for name, profile in PROFILES.items()}
    green = frozenset(name for name in PROFILES if _all_green(name, alone))
    return tuple(replace(result, green=result.name in green) for result in alone.values())


def _result(profile: Profile, groups: Sequence[tuple[CaseGroup, int]], lost: Sequence[PlannedCase]) -> ProfileResult:
    """Return the result of one profile, whatever the profiles that it contains.

    It is green when every claimed case passed, none failed, a case of its own passed, and enough is claimed. The third
    condition keeps a run without a distributed case from being called ``distributed``.
    """
    inside = [
        (group, number) for group, number in groups if group.first.of_device and in_profile(profile.name, group.first)
    ]
    counts = total(group.counts for group, _ in inside)
    claimed = counts.claimed + sum(planned.of_device and in_profile(profile.name, planned) for planned in lost)
    own = any(group.counts.passed and profile.own(group.first) for group, _ in inside)
    lacks = (*_lacks(profile, inside, lost), *(_untrained(groups) if profile.trains else ()))
    green = own and not counts.failed and counts.passed == claimed and not lacks
    return ProfileResult(profile.name, counts.passed, claimed, counts.failed, green, lacks)


def _lacks(profile: Profile, groups: Sequence[tuple[CaseGroup, int]], lost: Sequence[PlannedCase]) -> Iterator[str]:
    """Yield what the profile requires in breadth and the run does not claim."""
    if profile.needs:
        claimed = claimed_cells(group for group, _ in groups)
        yield from (f"{capability} is not claimed" for capability in profile.needs if capability not in claimed)
    if profile.areas is None or profile.areas:
        for share in area_shares(groups, lost, profile.own):
            counts = share.area not in _OPTIONAL if profile.areas is None else share.area in profile.areas
            if counts and share.planned >= _FEWEST and share.claimed < MINIMUM_SHARE * share.planned:
                yield f"{share} cases claimed"


def _untrained(groups: Sequence[tuple[CaseGroup, int]]) -> Iterator[str]:
    """Yield dtypes of reduced precision in which the operators run and do not train."""
    forward, backward = (reduced_shares(groups, mode) for mode in ("inference", "training"))
    for dtype, share in backward.items():
        runs = forward[dtype].planned and forward[dtype].claimed >= MINIMUM_SHARE * forward[dtype].planned
        if runs and share.planned >= _FEWEST and share.claimed < MINIMUM_SHARE * share.planned:
            yield f"{share} cases claimed"


def _all_green(name: str, alone: Mapping[str, ProfileResult]) -> bool:
    parents = [parent for parent in PROFILES[name].parents if PROFILES[parent].badge]
    return alone[name].green and all(_all_green(parent, alone) for parent in parents)


def badge(results: Iterable[ProfileResult]) -> str | None:
    """Return the name of the largest green profile, or None."""
    # The last one: the results come from the smallest profile to the largest.
    green = [result.name for result in results if result.green and PROFILES[result.name].badge]
    return green[-1] if green else None


@dataclass(frozen=True)
class Policy:
    """Requirements of one profile on a report, beyond passing.

    ``max_age`` counts from the end of the run to the gate; ``max_flaky`` is how many cases may be waived as flaky.
    """

    profile: str
    max_age: timedelta = timedelta(days=90)
    max_flaky: int = 10


#: Smaller profiles allow fewer flaky cases.
_MAX_FLAKY: Final = {"core": 0, "standard": 5, "inference": 5, "training": 5, "distributed": 10, "full": 10}

POLICIES: Final[dict[str, Policy]] = {name: Policy(name, max_flaky=_MAX_FLAKY[name]) for name in PROFILES}


def find_policy(profile: str) -> Policy:
    """Return the policy of a profile; UnknownName with suggestions if there is none."""
    return POLICIES[find_profile(profile).name]


def containing(profile: str) -> tuple[str, ...]:
    """Return the names of the profiles that contain all cases of this one."""
    return tuple(name for name in PROFILES if profile in contained(name))

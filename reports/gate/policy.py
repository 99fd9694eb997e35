"""What each profile asks of a report beyond passing: how old it may be, and how flaky."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from conformance.reports.profiles import PROFILES, contained, find_profile


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

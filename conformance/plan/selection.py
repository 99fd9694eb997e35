"""Selection of the cases of a run: pure functions of cases and options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from conformance.plan.case import Tier
from conformance.plan.run_options import RunOptions
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import in_profile


def selector(options: RunOptions) -> Callable[[PlannedCase], bool]:
    """Return a predicate that tells whether the options select a case."""
    tests: list[Callable[[PlannedCase], bool]] = []
    if options.areas:
        tests.append(lambda case: case.area in options.areas)
    if options.tier:
        tests.append(lambda case: case.tier == options.tier)
    else:
        tests.append(_usual(options.cases))
    if options.dtypes:
        tests.append(lambda case: case.axes.get("dtype") in options.dtypes)
    if options.cases:
        tests.append(_named(options.cases))
    if options.profile:
        tests.append(lambda case: in_profile(str(options.profile), case))
    if options.shard:
        tests.append(lambda case: in_shard(case.id, *options.shard))  # type: ignore[misc]
    return lambda case: all(test(case) for test in tests)


def _usual(patterns: Iterable[str]) -> Callable[[PlannedCase], bool]:
    """Return a predicate that leaves out the deep tier, but for cases that are named in full."""
    exact = frozenset(patterns)
    return lambda case: case.tier != Tier.DEEP.value or case.id in exact


def _named(patterns: Iterable[str]) -> Callable[[PlannedCase], bool]:
    """Return a predicate that tells whether one of the patterns matches the id of a case.

    Ids without a wildcard are looked up in a set, because a case file may name thousands of them.
    """
    exact = frozenset(pattern for pattern in patterns if "*" not in pattern)
    others = [pattern for pattern in patterns if "*" in pattern]
    return lambda case: case.id in exact or any(matches(pattern, case.id) for pattern in others)


def matches(pattern: str, case_id: str) -> bool:
    """Return whether the id matches; ``*`` matches any text, every other character (also a bracket) only itself."""
    return _compiled(pattern).fullmatch(case_id) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Not fnmatch, which reads the brackets of an id as a set of characters.
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def in_shard(case_id: str, k: int, n: int) -> bool:
    """Return whether the id belongs to part ``k`` (from 1) of ``n`` parts; this depends on the id alone."""
    return int.from_bytes(hashlib.sha256(case_id.encode()).digest()[:4], "big") % n == k - 1


def areas_of(options: RunOptions, known: Iterable[str]) -> list[str]:
    """Return the areas in which the options may select a case, so that no other area is imported."""
    known = list(known)
    if options.areas:
        return [area for area in known if area in options.areas]
    prefixes = {pattern.split(".", 1)[0] for pattern in options.cases}
    if prefixes and prefixes <= set(known):
        return [area for area in known if area in prefixes]
    return known

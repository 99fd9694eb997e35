"""Totals of a run: counts of outcomes and claims, and the exit status that follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from conformance.reports.verdict import Outcome, Reason


class ExitStatus(IntEnum):
    """Exit statuses of a run. The values 2, 3 and 4 are pytest's own."""

    GREEN = 0
    FAILED = 1
    INTERNAL = 3
    NOTHING_VERIFIED = 5
    UNACCOUNTED = 6


@dataclass(frozen=True)
class Counts:
    """Counts of cases that passed, were skipped, failed, or have no verdict (``lost``), and of claimed ones.

    ``aside`` counts the passed cases that are not about the device. They are not claimed, and in no percentage.
    """

    passed: int = 0
    skipped: int = 0
    failed: int = 0
    lost: int = 0
    claimed: int = 0
    aside: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed,
            self.skipped + other.skipped,
            self.failed + other.failed,
            self.lost + other.lost,
            self.claimed + other.claimed,
            self.aside + other.aside,
        )

    def times(self, number: int) -> Counts:
        """Return the counts of so many cases that ended alike."""
        members = (self.passed, self.skipped, self.failed, self.lost, self.claimed, self.aside)
        return Counts(*(number * member for member in members))

    @property
    def planned(self) -> int:
        return self.passed + self.skipped + self.failed + self.lost

    @property
    def of_device(self) -> int:
        """Return the number of passed cases about the device: the numerator of every percentage."""
        return self.passed - self.aside

    @property
    def verified(self) -> str:
        """Return passes over claimed cases, with the percentage rounded down: 100 % means all of them."""
        if not self.claimed:
            return "–"
        return f"{self.of_device}/{self.claimed} {1000 * self.of_device // self.claimed / 10:g} %"


def count(outcome: Outcome | None, reason: Reason | None, *, of_device: bool = True) -> Counts:
    """Return the counts of one planned case. No outcome means that it has no verdict.

    A case that is not about the device is never claimed: it proves nothing about the device.
    """
    return Counts(
        passed=int(outcome is Outcome.PASS),
        skipped=int(outcome is Outcome.SKIP),
        failed=int(outcome is Outcome.FAIL),
        lost=int(outcome is None),
        claimed=int(of_device and (reason is None or reason.facts.claimed)),
        aside=int(not of_device and outcome is Outcome.PASS),
    )


def total(counts: Iterable[Counts]) -> Counts:
    return sum(counts, Counts())


def tally(verdicts: Iterable[tuple[Outcome | None, Reason | None, bool]]) -> Counts:
    """Return the counts of many planned cases: outcome and reason of each, and whether it is about the device."""
    return total(
        count(outcome, reason, of_device=of_device).times(number)
        for (outcome, reason, of_device), number in Counter(verdicts).items()
    )


def was_executed(outcome: Outcome, reason: Reason) -> bool:
    """Return whether something ran as claimed in a case with this verdict."""
    return outcome is not Outcome.SKIP or reason.facts.executed


def idle_areas(verdicts: Iterable[tuple[str, Outcome, Reason]]) -> tuple[str, ...]:
    """Return the areas of ``(area, outcome, reason)`` rows where something is claimed and nothing ran."""
    claimed: set[str] = set()
    executed: set[str] = set()
    for area, outcome, reason in verdicts:
        if reason.facts.claimed:
            claimed.add(area)
        if was_executed(outcome, reason):
            executed.add(area)
    return tuple(sorted(claimed - executed))


def exit_status(counts: Counts, *, disordered: bool, idle: bool, internal: bool = False) -> ExitStatus:
    """Return the exit status of a finished run.

    ``internal``: the suite itself failed in a case. ``disordered``: an id has two verdicts, or a verdict was not
    planned. Incomplete accounting outranks failures,
    because there may be more failures than were seen.
    """
    if internal:
        return ExitStatus.INTERNAL
    if counts.lost or disordered:
        return ExitStatus.UNACCOUNTED
    if counts.failed:
        return ExitStatus.FAILED
    if not counts.passed:
        return ExitStatus.NOTHING_VERIFIED
    return ExitStatus.FAILED if idle else ExitStatus.GREEN

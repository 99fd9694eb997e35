"""Waivers: known failures that do not fail a run, each with an owner, a reason and an expiry date.

A waiver names cases and the one verdict that they may have. It waives nothing else: a case that is waived as ``wrong``
and crashes is a crash.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final

from conformance.reports.model import AcceleratorRecord
from conformance.reports.verdict import Outcome, Reason

#: A waiver without an end lowers the requirement for good.
LONGEST: Final = timedelta(days=180)
#: Error that a waiver excuses unless it says another: so many error budgets. A known wrong result may not grow.
LARGEST_ERROR: Final = 100.0
#: Error of a waiver that excuses every error.
UNBOUNDED: Final = 1e99
#: Metrics of errors as parts of their budgets.
RATIOS: Final = ("max_budget_ratio", "error_of_bound")
#: Reasons that a waiver may name. Failures of the core, and reasons that waivers themselves make, are left out.
WAIVABLE: Final = frozenset(
    reason for reason in Reason if Outcome.FAIL in reason.facts.outcomes and reason.facts.is_waivable
)


class WaiverKind(Enum):
    """Kind of a waiver: the hardware cannot do it, it is not written yet, it is a bug, or it fails now and then."""

    HARDWARE = "hardware"
    NOT_YET = "not-yet"
    BUG = "bug"
    FLAKY = "flaky"


@dataclass(frozen=True)
class Waiver:
    """Waiver of a file.

    ``cases`` are ids or patterns (``*`` is any text). ``device``, ``driver`` and ``torch`` are patterns that narrow
    the waiver to a device's name or to versions; empty: all of them. ``error`` is the largest error that is excused, as
    a multiple of the error budget. ``line`` is its number in the file, from 1.
    """

    cases: tuple[str, ...]
    verdict: Reason
    kind: WaiverKind
    ticket: str
    reason: str
    owner: str
    expires: date
    device: str = ""
    driver: str = ""
    torch: str = ""
    error: float = LARGEST_ERROR
    line: int = 0

    @property
    def name(self) -> str:
        """Return the name for messages: the first case, how many more, and the reason."""
        more = f" and {len(self.cases) - 1} more" if len(self.cases) > 1 else ""
        return f"{self.cases[0]}{more} ({self.verdict.value})"

    def is_expired(self, today: date) -> bool:
        """Return whether the waiver has expired. It is still valid on the day that it names."""
        return today > self.expires

    @cached_property
    def exact(self) -> frozenset[str]:
        return frozenset(pattern for pattern in self.cases if "*" not in pattern)

    def covers(self, case: str) -> bool:
        return case in self.exact or any(pattern_matches(pattern, case) for pattern in self.cases if "*" in pattern)

    def applies_to(self, accelerator: AcceleratorRecord) -> bool:
        """Return whether the waiver is for this device and these versions."""
        return (
            (not self.device or any(fnmatch.fnmatchcase(name, self.device) for name in accelerator.device_names))
            and (not self.driver or fnmatch.fnmatchcase(accelerator.driver, self.driver))
            and (not self.torch or fnmatch.fnmatchcase(accelerator.torch, self.torch))
        )

    def excuses(self, metrics: Mapping[str, float | int | str]) -> bool:
        """Return whether the errors of a failure are within what the waiver allows. Other failures have no errors."""
        found = [metrics[name] for name in RATIOS if name in metrics]
        return all(_size(value) <= self.error for value in found)

    def faults(self, today: date) -> Iterator[str]:
        """Yield what makes the waiver invalid by itself, each as the rest of a sentence that begins with its name."""
        if self.kind is WaiverKind.FLAKY and len(self.exact) < len(self.cases):
            yield "is flaky and has a pattern; name each of its cases"
        if not self.error > 0:
            yield f"excuses an error of {self.error:g}, which is no multiple of a budget"
        if self.verdict not in WAIVABLE:
            yield f"names the verdict {self.verdict.value}, which cannot be waived"
        for name in ("ticket", "reason", "owner"):
            if not getattr(self, name).strip():
                yield f"has no {name}"
        if self.is_expired(today):
            yield f"expired on {self.expires}"
        elif self.expires > today + LONGEST:
            yield f"runs until {self.expires}, which is more than {LONGEST.days} days ahead"


def _size(value: float | int | str) -> float:
    """Return an error as a number. One that is infinite or none is excused by a waiver of ``UNBOUNDED`` alone."""
    try:
        size = float(value)
    except ValueError:
        return UNBOUNDED
    return min(size, UNBOUNDED) if size == size else UNBOUNDED


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in re.split(r"\*+", pattern)), re.DOTALL)


def pattern_matches(pattern: str, case: str) -> bool:
    """Return whether an id matches. ``*`` is any text; every other character stands for itself, brackets too."""
    return _compiled(pattern).fullmatch(case) is not None

"""Numbers and texts that cases write beside their verdicts: what each can be, and what two of them say together.

The gate compares the metrics of passed and skipped cases with this table. A metric that the table does not know is no
evidence of anything, and no rule reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from conformance.reports.breadth import IMPLEMENTATION, KERNEL_ORIGINS
from conformance.reports.calls import NEEDS
from conformance.reports.model import CaseRecord, Fact
from conformance.reports.plain_text import plain
from conformance.reports.verdict import Outcome


@dataclass(frozen=True)
class NumberRange:
    """Smallest and largest number that a case writes under a name. ``whole``: it counts, so it has no point."""

    least: float
    most: float
    whole: bool = False

    def holds(self, value: Fact) -> bool:
        """Return whether a case can have written the value."""
        kinds = (int,) if self.whole else (int, float)
        return type(value) in kinds and self.least <= value <= self.most  # type: ignore[operator]


#: Numbers of passed and skipped cases by name. An error of 2 is that of the opposite of the right result, and no bound
#: of the suite is as large. A bound of collectives is five roundings of bfloat16. A share of the rate of products may
#: be larger than 1, because the rate is measured.
_RANGES: Final = tuple(
    (re.compile(pattern, re.ASCII), found)
    for pattern, found in (
        (r"error", NumberRange(0, 0.1)),
        (r"\w+_error|error_after_\d+|drift", NumberRange(0, 2)),
        (r"accuracy|expert_flips|share_\w+", NumberRange(0, 1)),
        (r"matmul_share", NumberRange(0, 4)),
        (r"noise_floor|final_loss|held_out_loss|unigram_entropy|temporaries", NumberRange(0, 1e6)),
        (r"near_ties|different_tokens|dropped|used|changed", NumberRange(0, 100_000, whole=True)),
        (r"compared|operators|graphs|threads|largest_batch", NumberRange(1, 100_000, whole=True)),
        (r"exact_bits", NumberRange(1, 64, whole=True)),
        (r"smallest\..+", NumberRange(1, 10_000_000, whole=True)),
        (r"bytes|\w+_bytes", NumberRange(0, 1e15)),
        (r"step_ms_\w+|tokens_per_s|samples_per_s", NumberRange(1e-9, 1e12)),
        (r"seconds_\d+", NumberRange(0, 1e5)),
        (r"largest_sum_bits", NumberRange(0, 64)),
    )
)
#: Names of texts, which are never numbers.
_TEXTS: Final = frozenset(
    [IMPLEMENTATION, "implementation_reason", "probe", "observed", "leaked", "largest_sum", "nan", "refused", NEEDS]
)
#: Characters of a text that a passed or skipped case writes.
_LONGEST_TEXT: Final = 2_000
#: A kernel of a layer with its dtype, as in ``rms_norm.bfloat16``. Its text is its origin and the reason.
_KERNEL_OF_LAYER: Final = re.compile(r"\w+\.(float|bfloat)\d+", re.ASCII)
#: The beginning of the reason of a kernel that is PyTorch's.
_PYTORCHS: Final = "PyTorch's operators"
_SMALLEST: Final = "smallest."
#: Pairs of which the first is never larger than the second.
_ORDERED: Final = (
    ("largest_sum_bits", "exact_bits"),
    ("step_ms_median", "step_ms_p90"),
    ("changed", "operators"),
)


@cache
def _range_of(name: str) -> NumberRange | None:
    return next((found for pattern, found in _RANGES if pattern.fullmatch(name)), None)


def odd_metrics(case: CaseRecord) -> Iterator[str]:
    """Yield what no case writes that did not fail, as ends of sentences about cases."""
    metrics = case.metrics
    for name, value in metrics.items():
        if isinstance(value, str):
            yield from _odd_text(name, value)
        elif name in _TEXTS or _KERNEL_OF_LAYER.fullmatch(name):
            yield f"with a number for a text ({name})"
        if (found := _range_of(name)) is not None and not found.holds(value):
            yield f"with a number that no case writes ({name})"
    yield from _contradictions(metrics)
    yield from _of_invariance(case)


def _odd_text(name: str, text: str) -> Iterator[str]:
    if len(text) > _LONGEST_TEXT or plain(text) != text:
        yield f"with a text that is longer than {_LONGEST_TEXT} characters or cannot be seen ({name})"
    if _KERNEL_OF_LAYER.fullmatch(name):
        origin, _, reason = text.partition(": ")
        if (said := _odd_origin(origin, reason)) is not None:
            yield f"{said} ({name})"


def _contradictions(metrics: Mapping[str, Fact]) -> Iterator[str]:
    """Yield pairs of metrics that cannot both be true."""
    for small, large in _ORDERED:
        values = (metrics.get(small), metrics.get(large))
        if not any(isinstance(value, (str, type(None))) for value in values) and values[0] > values[1]:  # type: ignore[operator]
            yield f"with a larger number of {small} than of {large}"
    if IMPLEMENTATION in metrics and "implementation_reason" in metrics:
        said = _odd_origin(str(metrics[IMPLEMENTATION]), str(metrics["implementation_reason"]))
        if said is not None:
            yield f"{said} ({IMPLEMENTATION})"


def _odd_origin(origin: str, reason: str) -> str | None:
    """Return what is wrong with the origin of a kernel and its reason, or None."""
    if origin not in KERNEL_ORIGINS or not reason.strip():
        return "with a kernel without an origin and a reason"
    if origin != "reference" and reason.startswith(_PYTORCHS):
        return f"with {_PYTORCHS} as a kernel that is called {origin}"
    return None


def _of_invariance(case: CaseRecord) -> Iterator[str]:
    """Yield contradictions of how many operators change their bits, and where they do."""
    changed = case.metrics.get("changed")
    if type(changed) is not int:
        return
    if changed and case.outcome is Outcome.PASS:
        yield "passed although bits change (changed)"
    if changed != sum(name.startswith(_SMALLEST) for name in case.metrics):
        yield f"with another number of changes than places of changes (changed, {_SMALLEST}*)"

"""Breadth of a run: how much of the plan the accelerator claims as its own, by area, and whose kernels ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conformance.reports.groups import CaseGroup
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome, Reason

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord

#: Origins of a kernel, in the order of the columns: the vendor's, this project's compiled ones, PyTorch's operators.
KERNEL_ORIGINS: Final = ("vendor", "native", "reference", "unknown")
#: The metric in which a case says whose kernel ran.
IMPLEMENTATION: Final = "implementation"
_KERNELS: Final = "kernels."
#: Areas in which every passed case about a kernel says whose kernel it was. One that does not say it shows nobody's.
WHOSE_KERNEL: Final = frozenset({"ops"})
#: Shares are counted in this dtype, and over cases without a dtype: a device without float64 can reach them too.
COMMON_DTYPES: Final = frozenset({None, "float32"})


@dataclass(frozen=True)
class Breadth:
    """Number of cases that the accelerator claims as its own, of all planned cases."""

    claimed: int
    planned: int

    def __str__(self) -> str:
        return f"{self.claimed:,} of {self.planned:,} cases claimed"


#: Breadth of a run without cases.
NOTHING: Final = Breadth(0, 0)


def breadth(groups: Iterable[CaseGroup], lost: int = 0) -> Breadth:
    """Return the breadth of a run. ``lost`` cases have no verdict; they count as claimed, as in all other counts."""
    claimed = planned = lost
    for group in groups:
        if not group.first.of_device:
            continue
        claimed += group.counts.claimed - sum(map(is_borrowed, _kernel_passes(group)))
        planned += group.counts.planned
    return Breadth(claimed, planned)


def is_borrowed(case: CaseRecord) -> bool:
    """Return whether a passed case shows a kernel of this project, or of PyTorch, instead of the vendor's own."""
    if case.outcome is not Outcome.PASS or not runs_a_kernel(case):
        return False
    origin = case.metrics.get(IMPLEMENTATION)
    if case.area in WHOSE_KERNEL:
        return origin != "vendor"
    return origin in ("native", "reference") or (case.reason is Reason.EMULATED and origin != "vendor")


def runs_a_kernel(case: PlannedCase) -> bool:
    """Return whether the case is about a kernel."""
    return any(cell.startswith(_KERNELS) for cell in case.requires)


def _kernel_passes(group: CaseGroup) -> Iterable[CaseRecord]:
    """Return the cases of a group that may be borrowed. Most groups have none, and are not searched."""
    return group.cases if group.outcome is Outcome.PASS and group.area not in _WITHOUT_KERNELS else ()


#: The largest areas, none of whose cases requires a kernel. A search through them would cost the gate time.
_WITHOUT_KERNELS: Final = frozenset({"operators", "comm", "accelerator"})


def kernel_origins(cases: Iterable[CaseRecord]) -> Mapping[str, Counter[str]]:
    """Return how many passed cases ran whose kernel, for each area where a case says so."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        if case.outcome is Outcome.PASS and case.area not in _WITHOUT_KERNELS:
            origin = case.metrics.get(IMPLEMENTATION, "unknown")
            found[case.area][str(origin) if origin in KERNEL_ORIGINS else "unknown"] += 1
    return {area: counts for area, counts in sorted(found.items()) if counts.keys() != {"unknown"}}


def kernel_sentence(origins: Mapping[str, Counter[str]]) -> str:
    """Return the numbers of all areas in words, such as ``2 vendor, 3 reference``; empty if there are none."""
    total = sum(origins.values(), Counter[str]())
    return ", ".join(f"{total[origin]:,} {origin}" for origin in KERNEL_ORIGINS if total[origin])


@dataclass(frozen=True)
class AreaShare:
    """Claimed cases of one area, of those that are planned in ``COMMON_DTYPES``; borrowed kernels are in neither."""

    area: str
    claimed: int
    planned: int

    def __str__(self) -> str:
        return f"{self.area} {self.claimed} of {self.planned}"


def common_numbers(groups: Iterable[CaseGroup]) -> tuple[tuple[CaseGroup, int], ...]:
    """Return every group with the number of its cases in ``COMMON_DTYPES`` that are not borrowed."""
    return tuple(
        (group, _common(group.cases) - _common([case for case in _kernel_passes(group) if is_borrowed(case)]))
        for group in groups
    )


def _common(cases: Iterable[PlannedCase]) -> int:
    return sum([case.axes.get("dtype") in COMMON_DTYPES for case in cases])


def area_shares(
    numbers: Iterable[tuple[CaseGroup, int]], lost: Iterable[PlannedCase], belongs: Callable[[PlannedCase], bool]
) -> Iterator[AreaShare]:
    """Yield the share of each area over the cases that belong, from the result of ``common_numbers``."""
    claimed: Counter[str] = Counter()
    planned: Counter[str] = Counter()
    for group, number in numbers:
        if group.first.of_device and belongs(group.first):
            planned[group.area] += number
            claimed[group.area] += number if group.reason.facts.claimed else 0
    for area, number in Counter(case.area for case in lost if belongs(case) and _common([case])).items():
        planned[area] += number
        claimed[area] += number
    for area in sorted(planned):
        yield AreaShare(area, claimed[area], planned[area])


#: Dtypes of reduced precision. A device need not have them; one that has them for inference shows what training lacks.
REDUCED_DTYPES: Final = ("float16", "bfloat16")
_OPERATORS: Final = "operators"


def reduced_shares(groups: Iterable[tuple[CaseGroup, int]], mode: str) -> dict[str, AreaShare]:
    """Return the share of the operators' cases of a mode that are claimed in each dtype of reduced precision.

    Cells that PyTorch's own CPU lacks count only where they are claimed.
    """
    claimed: Counter[str] = Counter()
    planned: Counter[str] = Counter()
    for group, _ in groups:
        if group.area != _OPERATORS or group.first.axes.get("mode") != mode:
            continue
        is_claimed = group.reason.facts.claimed
        found = Counter([str(case.axes.get("dtype")) for case in group.cases if is_claimed or case.in_reference])
        planned += found
        claimed += found if is_claimed else Counter()
    return {
        dtype: AreaShare(f"{_OPERATORS} {dtype} {mode}", claimed[dtype], planned[dtype]) for dtype in REDUCED_DTYPES
    }


def claimed_cells(groups: Iterable[CaseGroup]) -> frozenset[str]:
    """Return the cells about collectives that the claimed cases require."""
    return frozenset(
        cell for group in groups if group.first.distributed and group.reason.facts.claimed
        for case in group.cases for cell in case.requires
    )  # fmt: skip

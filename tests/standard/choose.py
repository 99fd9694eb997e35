"""Chooses the cases of the profile ``standard``: ``python -m tests.standard.choose REPORT KILLERS``.

REPORT is the report of a whole run, which has the seconds of every case. KILLERS is what ``python -m
tests.faults.killers`` has written: drawn faults of operators, each with every case that kills it.

The choice is a greedy cover: again and again the case that kills most per second among what is left.

* A generated fault is a sample. What it says of one subject, such as an operator, holds for all subjects of the area.
  The axes of the cases that killed it form a pattern, and every subject gets every pattern, with its share of the
  weight.
* A generated fault acts in all dtypes at once, but a device has a kernel for each. A part of the weight goes to faults
  of one dtype alone.
* A known defect counts by the cases that killed it.
* A fault of a collective counts by the cases that can meet its condition.
* All core cases are in the profile, the short cases of streams, memory and state, and the cheapest case of each area,
  of each capability that can be claimed, and of the operators in each dtype and mode.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.plan.known_cases import known_cases
from conformance.reports import profiles
from conformance.reports.loading import load
from conformance.reports.planned import PlannedCase
from conformance.reports.standard import FILE
from conformance.reports.verdict import Outcome
from tests.faults.pairs import collectives

DEFECTS = Path(__file__).parents[1] / "defects" / "measured.json"
#: Worker-seconds of the profile: what two workers have in two minutes, less start, collection and report.
SECONDS = 200.0
#: Weights of all generated faults, known defects and faults of collectives: the families of faults that they stand for.
_GENERATED, _DEFECTS, _COLLECTIVES = 7.0, 2.0, 1.0
#: Area of streams, memory and state, and seconds of those of its cases that are all in the profile. A CPU skips most of
#: them at once, so its seconds say little of them; faults of time and of state show in few of them.
_STATE, _SHORT = "accelerator", 0.2
#: Share of the operators' weight for faults in one dtype alone, and its parts.
_ALONE = 0.2
_DTYPES = {
    "bfloat16-inference": 0.35,
    "bfloat16-training": 0.25,
    "float16-inference": 0.2,
    "float16-training": 0.1,
    "int32-inference": 0.1,
}
#: Least seconds of a case: pytest itself needs some.
_LEAST = 0.004


@dataclass
class Cover:
    """Faults with weights, the cases that kill each, and the cases that are chosen so far."""

    seconds: Mapping[str, float]
    weights: list[float] = field(default_factory=list)
    killers: list[frozenset[str]] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)

    def add(self, weight: float, killers: Iterable[str]) -> None:
        """Add a fault; one that no candidate kills is left out."""
        if known := frozenset(killers) & self.seconds.keys():
            self.weights.append(weight)
            self.killers.append(known)

    def cost(self, id: str) -> float:
        return max(self.seconds[id], _LEAST)

    def spent(self) -> float:
        return sum(map(self.cost, self.chosen))

    def share(self) -> float:
        """Return the weight of the killed faults, as a share of all."""
        killed = (w for w, killers in zip(self.weights, self.killers, strict=True) if killers & self.chosen)
        return sum(killed) / (sum(self.weights) or 1.0)

    def fill(self, budget: float) -> None:
        """Choose the best case per second until the budget is spent, or nothing is left to kill."""
        by_case: dict[str, list[int]] = defaultdict(list)
        for number, killers in enumerate(self.killers):
            for id in killers:
                by_case[id].append(number)
        alive = {number for number, killers in enumerate(self.killers) if not killers & self.chosen}
        gain = {id: sum(self.weights[n] for n in numbers if n in alive) for id, numbers in by_case.items()}
        spent = self.spent()
        while gain:
            id = max(gain, key=lambda id: (gain[id] / self.cost(id), id))
            if gain[id] <= 0:
                return
            worth = gain.pop(id)
            if spent + self.cost(id) > budget or worth <= 0:
                continue
            self.chosen.add(id)
            spent += self.cost(id)
            for number in by_case[id]:
                if number in alive:
                    alive.discard(number)
                    for other in self.killers[number]:
                        if other in gain:
                            gain[other] -= self.weights[number]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of the profile, and print what it costs and kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.standard.choose", description=__doc__)
    parser.add_argument("report", metavar="REPORT", type=Path, help="report folder or report.json of a whole run")
    parser.add_argument("killers", metavar="KILLERS", type=Path, nargs="+", help="files of tests.faults.killers")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"worker-seconds (default: {SECONDS:g})")
    options = parser.parse_args(arguments)
    planned = {case.id: case for case in known_cases() if case.tier != profiles.DEEP and case.of_device}
    report = load(options.report)
    measured = {case.id: case.seconds for case in report.cases if case.id in planned}
    passed = frozenset(case.id for case in report.cases if case.outcome is Outcome.PASS)
    cover = Cover(measured)
    _add_generated(cover, planned, [row for path in options.killers for row in _rows(path)])
    _add_defects(cover)
    _add_collectives(cover, planned)
    cover.chosen |= _required(planned, cover, passed)
    print(f"required: {len(cover.chosen)} cases, {cover.spent():.0f} s, {cover.share():.1%} of the weight")
    cover.fill(options.seconds)
    print(f"chosen: {len(cover.chosen)} cases, {cover.spent():.0f} s, {cover.share():.1%} of the weight")
    areas = Counter(planned[id].area for id in cover.chosen)
    print(", ".join(f"{area} {number}" for area, number in sorted(areas.items())))
    FILE.write_bytes(gzip.compress(text(cover.chosen).encode(), 9, mtime=0))
    return 0


def _rows(path: Path) -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _add_generated(cover: Cover, planned: Mapping[str, PlannedCase], rows: Sequence[Mapping[str, list[str]]]) -> None:
    """Give every subject of an area the patterns of the faults drawn there."""
    patterns: dict[str, Counter[frozenset[str]]] = defaultdict(Counter)
    for row in rows:
        subjects = Counter(id.partition("[")[0] for id in row["reds"])
        if subjects:
            subject = subjects.most_common(1)[0][0]
            axes = frozenset(_axes(id) for id in row["reds"] if id.partition("[")[0] == subject)
            patterns[subject.partition(".")[0]][axes] += 1
    drawn = sum(map(Counter.total, patterns.values())) or 1
    for area, found in patterns.items():
        weight = _GENERATED / drawn
        subjects_of_area = _subjects(planned, area)
        for subject, known in subjects_of_area.items():
            for pattern, number in found.items():
                part = (1 - _ALONE) if area == "operators" else 1.0
                ids = (f"{subject}[{axes}]" if axes else subject for axes in pattern & known)
                cover.add(weight * part * number / len(subjects_of_area), ids)
    _add_single_dtypes(cover, _subjects(planned, "operators"), _GENERATED * patterns["operators"].total() / drawn)


def _add_single_dtypes(cover: Cover, operators: Mapping[str, set[str]], weight: float) -> None:
    """Add faults that act in one dtype alone to every operator."""
    for subject, known in operators.items():
        for axes, part in _DTYPES.items():
            cover.add(weight / len(operators) * _ALONE * part, [f"{subject}[{axes}]"] if axes in known else [])


def _subjects(planned: Mapping[str, PlannedCase], area: str) -> dict[str, set[str]]:
    """Return the axes of the cases of each subject of an area that PyTorch's CPU has."""
    found: dict[str, set[str]] = defaultdict(set)
    for id, case in planned.items():
        if case.area == area and case.in_reference:
            found[id.partition("[")[0]].add(_axes(id))
    return found


def _axes(id: str) -> str:
    return id.partition("[")[2].removesuffix("]")


def _add_defects(cover: Cover) -> None:
    """Add the known defects, each with all cases that have failed on it."""
    rows = [json.loads(line) for line in DEFECTS.read_text(encoding="utf-8").splitlines()[1:]]
    killed = [row["reds"] for row in rows if row["reds"]]
    for reds in killed:
        cover.add(_DEFECTS / len(killed), reds)


def _add_collectives(cover: Cover, planned: Mapping[str, PlannedCase]) -> None:
    """Add every fault of a collective, each with the cases that can meet its condition."""
    ranks = {id: case.world_size for id, case in planned.items() if case.area == "comm" and case.world_size}
    population = collectives.population()
    for fault in population:
        cover.add(_COLLECTIVES / len(population), collectives.candidates(fault, ranks))


def _required(planned: Mapping[str, PlannedCase], cover: Cover, passed: frozenset[str]) -> set[str]:
    """Return the core cases, the short ones of state, and the cheapest of each area and each claimable cell."""
    found = {id for id, case in planned.items() if case.level == "core" and id in cover.seconds}
    found |= {id for id, seconds in cover.seconds.items() if planned[id].area == _STATE and seconds <= _SHORT}
    wanted: dict[str, list[str]] = defaultdict(list)
    for id, case in planned.items():
        if id in cover.seconds:
            wanted[f"area {case.area}"].append(id)
            for cell in case.requires:
                wanted[claim(cell)].append(id)
    for ids in wanted.values():
        # A case that the CPU skips exercises no claim of it.
        exercising = [id for id in ids if id in passed] or ids
        if found.isdisjoint(exercising):
            found.add(min(exercising, key=cover.cost))
    return found


def claim(cell: str) -> str:
    """Return what one case has to stand for: operators by dtype and mode, any other capability whatever its axes."""
    name, bracket, axes = cell.partition("[")
    return f"operators.*{bracket}{axes}" if name.startswith("operators.") else name


def text(ids: Iterable[str]) -> str:
    """Return the file's text: the axes of the chosen cases by the ids without them."""
    rows: dict[str, list[str]] = defaultdict(list)
    for id in sorted(ids):
        rows[id.partition("[")[0]].append(_axes(id))
    return json.dumps(rows, separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())

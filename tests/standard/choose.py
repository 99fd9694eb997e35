"""Chooses the contents of the profile ``standard``: ``python -m tests.standard.choose REPORT FAMILIES KILLERS…``.

REPORT is the report of a whole run, which has the seconds of every case. FAMILIES is what ``python -m
tests.faults.families`` has written: the seconds of each family of inputs. KILLERS is what ``python -m
tests.faults.killers`` has written: faults of operators, each with every case and family that kills it.

The choice of cases is a greedy cover: again and again the case that kills most per second among what is left. The
families are in such an order too, and so many of them are chosen that the cases which then fit kill most.

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
import heapq
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.plan.known_cases import known_cases
from conformance.reports import profiles
from conformance.reports.loading import load
from conformance.reports.planned import PlannedCase
from conformance.reports.standard import FILE
from conformance.reports.verdict import Outcome
from conformance.suites.operators.inputs.families import left_to_deep
from tests.faults import families
from tests.faults.killers import SAMPLES
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
#: Share of a worth that rounding may take, and the worth of a case that kills nothing more.
_SAME, _NOTHING = 1 - 1e-9, 1e-12
#: Least seconds of a family in all cells, and families by which two choices differ.
_LEAST_OF_A_FAMILY, _STEP = 0.3, 1

#: A fault with every case that kills it, and the families that see it there.
Row = Mapping[str, Any]


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

    def killed(self) -> float:
        """Return the weight of the killed faults."""
        return sum(w for w, killers in zip(self.weights, self.killers, strict=True) if killers & self.chosen)

    def fill(self, budget: float) -> None:
        """Choose the best case per second until the budget is spent, or nothing is left to kill."""
        by_case: dict[str, list[int]] = defaultdict(list)
        for number, killers in enumerate(self.killers):
            for id in killers:
                by_case[id].append(number)
        alive = {number for number, killers in enumerate(self.killers) if not killers & self.chosen}
        gain = {id: sum(self.weights[n] for n in numbers if n in alive) for id, numbers in by_case.items()}
        spent = self.spent()
        # The worth of a case only falls. One that has fallen since it was put into the queue goes back.
        queue = [(-worth / self.cost(id), id) for id, worth in gain.items()]
        heapq.heapify(queue)
        while queue:
            known, id = heapq.heappop(queue)
            if gain[id] <= _NOTHING or spent + self.cost(id) > budget:
                continue
            if (worth := gain[id] / self.cost(id)) < -known * _SAME:
                heapq.heappush(queue, (-worth, id))
                continue
            self.chosen.add(id)
            spent += self.cost(id)
            for number in by_case[id]:
                if number in alive:
                    alive.discard(number)
                    for other in self.killers[number]:
                        gain[other] -= self.weights[number]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of the profile, and print what it costs and kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.standard.choose", description=__doc__)
    parser.add_argument("report", metavar="REPORT", type=Path, help="report folder or report.json of a whole run")
    parser.add_argument("families", metavar="FAMILIES", type=Path, help="file of tests.faults.families")
    parser.add_argument("killers", metavar="KILLERS", type=Path, nargs="+", help="files of tests.faults.killers")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"worker-seconds (default: {SECONDS:g})")
    options = parser.parse_args(arguments)
    planned = {case.id: case for case in known_cases() if case.tier != profiles.DEEP and case.of_device}
    report = load(options.report)
    measured = {case.id: case.seconds for case in report.cases if case.id in planned}
    passed = frozenset(case.id for case in report.cases if case.outcome is Outcome.PASS)
    rows = [row for path in options.killers for row in _rows(path)]
    every: families.Seconds = json.loads(options.families.read_text(encoding="utf-8"))
    seconds = {axes: {name: parts[name] for name in _of_cells(parts, axes)} for axes, parts in every.items()}
    order = list(_in_order(rows, seconds))
    others = [*_defects(), *_collectives(planned)]
    # With all families first: of the weight that these can kill, all choices get their share.
    numbers = list(range(len(order), 0, -_STEP))
    covers: list[tuple[float, Cover, list[str]]] = []
    for number in numbers:
        chosen = order[:number]
        cover = Cover(_seconds_with(chosen, measured, seconds))
        _add_generated(cover, planned, _kills_with(chosen, rows), len(rows))
        for fault in others:
            cover.add(*fault)
        whole = covers[0][0] if covers else sum(cover.weights)
        cover.chosen |= _required(planned, cover, passed)
        required = cover.spent()
        cover.fill(options.seconds)
        covers.append((whole, cover, chosen))
        facts = f"{len(cover.chosen)} cases, {required:.0f} s required, {cover.spent():.0f} s"
        print(f"{number} families: {facts}, {cover.killed() / whole:.1%} of the weight", flush=True)
    _, cover, chosen = max(covers, key=lambda item: item[1].killed())
    print(f"chosen: {len(chosen)} families: {', '.join(chosen)}")
    areas = Counter(planned[id].area for id in cover.chosen)
    print(", ".join(f"{area} {number}" for area, number in sorted(areas.items())))
    FILE.write_bytes(gzip.compress(text(cover.chosen, chosen).encode(), 9, mtime=0))
    return 0


def _rows(path: Path) -> Iterator[Row]:
    """Yield the faults with the families that see them in the ordinary tiers."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        reds = {case: _of_cells(names, families.axes(case)) for case, names in row["reds"].items()}
        yield {**row, "reds": {case: names for case, names in reds.items() if names}}


def _of_cells(names: Iterable[str], axes: str) -> list[str]:
    """Return those of some families that cells of these axes do not leave to the deep tier."""
    return [name for name in names if axes not in left_to_deep().get(name, ())]


def _in_order(rows: Sequence[Row], seconds: families.Seconds) -> Iterator[str]:
    """Yield the families, again and again the one that kills most faults per second among those that are left.

    The samples of the database, which every case has, come before all.
    """
    spent = Counter[str]()
    for parts in seconds.values():
        spent.update(parts)
    left = [seen for row in rows if (seen := {name for names in row["reds"].values() for name in names})]
    best = SAMPLES
    while left := [seen for seen in left if best not in seen]:
        kills = Counter(name for seen in left for name in seen)
        best = max(kills, key=lambda name: (kills[name] / max(spent[name], _LEAST_OF_A_FAMILY), name))
        yield best


def _kills_with(chosen: Sequence[str], rows: Sequence[Row]) -> list[dict[str, list[str]]]:
    """Return the faults with the cases that kill them where cells have these families and the samples alone."""
    own = {SAMPLES, *chosen}
    return [{"reds": [case for case, names in row["reds"].items() if not own.isdisjoint(names)]} for row in rows]


def _seconds_with(
    chosen: Sequence[str],
    measured: Mapping[str, float],
    seconds: families.Seconds,
) -> dict[str, float]:
    """Return the seconds of every case where cells have these families alone."""
    own = {SAMPLES, *chosen}
    shares = {axes: sum(parts.get(name, 0.0) for name in own) / sum(parts.values()) for axes, parts in seconds.items()}
    found = {}
    for id, whole in measured.items():
        found[id] = whole * (shares.get(families.axes(id), 1.0) if id.startswith("operators.") else 1.0)
    return found


def _add_generated(
    cover: Cover, planned: Mapping[str, PlannedCase], rows: Sequence[Mapping[str, list[str]]], drawn: int
) -> None:
    """Give every subject of an area the patterns of the faults drawn there. Of those ``drawn``, some kill nothing."""
    patterns: dict[str, Counter[frozenset[str]]] = defaultdict(Counter)
    for row in rows:
        subjects = Counter(id.partition("[")[0] for id in row["reds"])
        if subjects:
            subject = subjects.most_common(1)[0][0]
            axes = frozenset(families.axes(id) for id in row["reds"] if id.partition("[")[0] == subject)
            patterns[subject.partition(".")[0]][axes] += 1
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
            found[id.partition("[")[0]].add(families.axes(id))
    return found


def _defects() -> Iterator[tuple[float, list[str]]]:
    """Yield the weight of each known defect, and all cases that have failed on it."""
    rows = [json.loads(line) for line in DEFECTS.read_text(encoding="utf-8").splitlines()[1:]]
    killed = [row["reds"] for row in rows if row["reds"]]
    for reds in killed:
        yield _DEFECTS / len(killed), reds


def _collectives(planned: Mapping[str, PlannedCase]) -> Iterator[tuple[float, list[str]]]:
    """Yield the weight of each fault of a collective, and the cases that can meet its condition."""
    ranks = {id: case.world_size for id, case in planned.items() if case.area == "comm" and case.world_size}
    population = collectives.population()
    for fault in population:
        yield _COLLECTIVES / len(population), list(collectives.candidates(fault, ranks))


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


def text(ids: Iterable[str], families_of_inputs: Iterable[str]) -> str:
    """Return the file's text: the axes of the chosen cases by the ids without them, and the families of inputs."""
    cases: dict[str, list[str]] = defaultdict(list)
    for id in sorted(ids):
        cases[id.partition("[")[0]].append(families.axes(id))
    return json.dumps({"cases": cases, "families": sorted(families_of_inputs)}, separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())

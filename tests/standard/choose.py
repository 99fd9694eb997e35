"""Chooses the contents of the profile ``standard``: ``python -m tests.standard.choose REPORT FAMILIES KILLERS…``.

REPORT is the report of a whole run, which has the seconds of every case. FAMILIES is what ``python -m
tests.faults.families`` has written: the seconds of each family of inputs. KILLERS is what ``python -m
tests.faults.killers`` has written: faults of operators, each with every case and family that kills it.

The choice of cases is a greedy cover: again and again the case that kills most per second among what is left. The
families of the cells of one dtype and mode are in such an order too, and so many of them are chosen that the cases
which then fit kill most faults of which the choice knows nothing.

* A generated fault is a sample. What it says of one subject, such as an operator, holds for all subjects of the area.
  The axes of the cases that killed it form a pattern, and every subject gets every pattern, with its share of the
  weight.
* A generated fault acts in all dtypes at once, but a device has a kernel for each. A part of the weight goes to faults
  of one dtype alone.
* A known defect counts by the cases that killed it.
* A fault of a collective counts by the cases that can meet its condition.
* All core cases are in the profile, the short cases of streams, memory and state, the compiled case that kills most,
  and the cheapest case of each area, of each capability that can be claimed, and of the operators in each dtype and
  mode.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
from tests.faults.families import Place
from tests.faults.judging import subject_of
from tests.faults.killers import SAMPLES
from tests.faults.pairs import collectives

DEFECTS = Path(__file__).parents[1] / "defects" / "measured.json"
#: Worker-seconds of the profile, so that two workers take less than two minutes with start, collection and report. They
#: are an estimate from above: a choice of 230 s ran in 167.
SECONDS = 230.0
#: Weights of all generated faults, known defects and faults of collectives: the families of faults that they stand for.
_GENERATED, _DEFECTS, _COLLECTIVES = 7.0, 2.0, 1.0
#: Area of streams, memory and state, and seconds of those of its cases that are all in the profile. A CPU skips most of
#: them at once, so its seconds say little of them; faults of time and of state show in few of them.
_STATE, _SHORT = "accelerator", 0.2
#: The case that kills most faults of compiled code: 20 of 26 that any case kills of 39 drawn ones, in a tenth of the
#: seconds of all of them.
_COMPILED = "compile.drawn[float32]"
#: Share of the operators' weight for faults in one dtype alone, and its parts.
_ALONE = 0.2
_DTYPES = {
    "bfloat16-inference": 0.25,
    "bfloat16-training": 0.2,
    "float16-inference": 0.15,
    "int64-inference": 0.12,
    "float16-training": 0.1,
    "int32-inference": 0.1,
    "bool-inference": 0.05,
    "complex64-inference": 0.03,
}
#: Least seconds of a case: pytest itself needs some.
_LEAST = 0.004
#: Share of a worth that rounding may take, and the worth of a case that kills nothing more.
_SAME, _NOTHING = 1 - 1e-9, 1e-12
#: Least seconds of a family in all cells of the same axes.
_LEAST_OF_A_PLACE = 0.1
#: Seconds of the families in all cells that are tried, and the parts of the faults: each part is killed by what the
#: others choose, so that nothing is chosen for one fault alone.
_SECONDS_OF_PLACES, _FOLDS = range(20, 190, 15), 3
#: Seconds of an operator's case beside its families and samples.
_BESIDE = 0.004

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
    parser.add_argument("--of-profile", type=Path, metavar="REPORT", help="report of a run of the profile before")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"worker-seconds (default: {SECONDS:g})")
    options = parser.parse_args(arguments)
    planned = {case.id: case for case in known_cases() if case.tier != profiles.DEEP and case.of_device}
    report = load(options.report)
    measured = {case.id: case.seconds for case in report.cases if case.id in planned}
    if options.of_profile is not None:
        measured = _as_first(measured, {case.id: case.seconds for case in load(options.of_profile).cases})
    passed = frozenset(case.id for case in report.cases if case.outcome is Outcome.PASS)
    rows = [row for path in options.killers for row in _rows(path, passed)]
    every: families.Seconds = json.loads(options.families.read_text(encoding="utf-8"))
    seconds = {axes: {name: parts[name] for name in _of_cells(parts, axes)} for axes, parts in every.items()}
    suite = Suite(planned, measured, passed, seconds, [*_defects(), *_collectives(planned)])
    folds = [_in_two(rows, fold) for fold in range(_FOLDS)]
    found: dict[int, int] = {}
    for most in _SECONDS_OF_PLACES:
        found[most] = sum(suite.chosen(own, most, options.seconds).kills(others) for own, others in folds)
        print(f"families of {most} s: {found[most]} of {len(rows)} faults by what the others choose", flush=True)
    choice = suite.chosen(rows, max(found, key=found.__getitem__), options.seconds)
    cover, places = choice.cover, choice.places
    share = cover.killed() / sum(cover.weights)
    print(f"chosen: {len(cover.chosen)} cases, {cover.spent():.0f} s, {share:.1%} of the weight")
    print(f"{len(places)} families in cells of the same axes: {', '.join(map(' '.join, places))}")
    areas = Counter(planned[id].area for id in cover.chosen)
    print(", ".join(f"{area} {number}" for area, number in sorted(areas.items())))
    FILE.write_bytes(gzip.compress(text(cover.chosen, places).encode(), 9, mtime=0))
    return 0


def _as_first(whole: Mapping[str, float], of_profile: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of all cases, with what the only ones of a subject pay in a run of the profile.

    There, few cases pay for what the first of their kind starts, such as ranks and a compiler.
    """
    more: Counter[str] = Counter()
    for id in of_profile.keys() & whole.keys():
        if not id.startswith("operators."):
            more[subject_of(id)] = max(more[subject_of(id)], of_profile[id] - whole[id])
    return {id: seconds + more[subject_of(id)] for id, seconds in whole.items()}


def _in_two(rows: Sequence[Row], fold: int) -> tuple[list[Row], list[Row]]:
    """Return the faults without one part, and that part."""
    parts: tuple[list[Row], list[Row]] = [], []
    for number, row in enumerate(rows):
        parts[number % _FOLDS == fold].append(row)
    return parts


@dataclass(frozen=True)
class Choice:
    """Chosen cases, and families that the cells of some axes have."""

    cover: Cover
    places: list[Place]

    def kills(self, rows: Sequence[Row]) -> int:
        """Return how many faults these cases kill with these families."""
        return sum(not self.cover.chosen.isdisjoint(row["reds"]) for row in kills_with(self.places, rows))


@dataclass(frozen=True)
class Suite:
    """What can be chosen: the cases with their seconds, those that pass on a CPU, and those of each family by axes.

    ``others`` are known defects and faults of collectives with their weights and killers.
    """

    planned: Mapping[str, PlannedCase]
    measured: Mapping[str, float]
    passed: frozenset[str]
    seconds: families.Seconds
    others: Sequence[tuple[float, list[str]]]

    def chosen(self, rows: Sequence[Row], most: float, budget: float) -> Choice:
        """Return what kills most of such faults in a budget, with families that take so many seconds in all cells."""
        places, spent = [], 0.0
        for name, axes in in_order(rows, self.seconds):
            spent += self.seconds[axes][name]
            if spent > most:
                break
            places.append((name, axes))
        cover = Cover(_seconds_with(places, self.measured, self.seconds))
        _add_generated(cover, self.planned, kills_with(places, rows), len(rows))
        for weight, killers in self.others:
            cover.add(weight, killers)
        cover.chosen |= _required(self.planned, cover, self.passed)
        cover.fill(budget)
        return Choice(cover, places)


def _rows(path: Path, cases: Set[str]) -> Iterator[Row]:
    """Yield the faults with the families that see them in the ordinary tiers, in some cases.

    What fails on the CPU says nothing of a fault.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        known = {case: names for case, names in row["reds"].items() if case in cases}
        reds = {case: _of_cells(names, families.axes(case)) for case, names in known.items()}
        yield {**row, "reds": {case: names for case, names in reds.items() if names}}


def _of_cells(names: Iterable[str], axes: str) -> list[str]:
    """Return those of some families that cells of these axes do not leave to the deep tier."""
    return [name for name in names if axes not in left_to_deep().get(name, ())]


def in_order(rows: Sequence[Row], seconds: families.Seconds) -> Iterator[Place]:
    """Yield families in cells of the same axes: again and again what kills most faults per second.

    The samples of the database, which every case has, come before all. A fault that a place sees which has come counts
    less: a fault like it may be seen by another place alone.
    """
    spent = {(name, axes): value for axes, parts in seconds.items() for name, value in parts.items()}
    seeing: dict[Place, list[int]] = defaultdict(list)
    worth = []
    for number, seen in enumerate(map(families.seen_by, rows)):
        worth.append(families.AGAIN ** sum(name == SAMPLES for name, _ in seen))
        for place in seen & spent.keys():
            seeing[place].append(number)

    def per_second(place: Place) -> float:
        return sum(worth[number] for number in seeing[place]) / max(spent[place], _LEAST_OF_A_PLACE)

    left = {place for place in seeing if place[0] != SAMPLES}
    while left:
        yield (best := max(left, key=lambda place: (per_second(place), place)))
        left.remove(best)
        for number in seeing[best]:
            worth[number] *= families.AGAIN


def kills_with(chosen: Iterable[Place], rows: Sequence[Row]) -> list[dict[str, list[str]]]:
    """Return the faults with the cases that kill them where cells have these families and the samples alone."""
    own = set(chosen)
    return [{"reds": [case for case, names in row["reds"].items() if _sees(case, names, own)]} for row in rows]


def _sees(case: str, names: Iterable[str], chosen: Set[Place]) -> bool:
    return any(name == SAMPLES or (name, families.axes(case)) in chosen for name in names)


def _seconds_with(
    chosen: Iterable[Place],
    measured: Mapping[str, float],
    seconds: families.Seconds,
) -> dict[str, float]:
    """Return the seconds of every case where cells have these families alone."""
    own = set(chosen)
    shares = {}
    for axes, parts in seconds.items():
        kept = sum(value for name, value in parts.items() if name == SAMPLES or (name, axes) in own)
        shares[axes] = kept / sum(parts.values())
    found = dict(measured)
    for id, whole in measured.items():
        if id.startswith("operators."):
            found[id] = whole * shares.get(families.axes(id), 1.0) + _BESIDE
    return found


def _add_generated(
    cover: Cover, planned: Mapping[str, PlannedCase], rows: Sequence[Mapping[str, list[str]]], drawn: int
) -> None:
    """Give every subject of an area the patterns of the faults drawn there. Of those ``drawn``, some kill nothing."""
    patterns: dict[str, Counter[frozenset[str]]] = defaultdict(Counter)
    for row in rows:
        subjects = Counter(subject_of(id) for id in row["reds"])
        if subjects:
            subject = subjects.most_common(1)[0][0]
            axes = frozenset(families.axes(id) for id in row["reds"] if subject_of(id) == subject)
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
            found[subject_of(id)].add(families.axes(id))
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
    found |= {_COMPILED} & cover.seconds.keys()
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


def text(ids: Iterable[str], places: Iterable[Place]) -> str:
    """Return the file's text: the axes of the chosen cases by the ids without them, and the families by axes."""
    cases, of_axes = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for id in sorted(ids):
        cases[subject_of(id)].append(families.axes(id))
    for name, axes in sorted(places):
        of_axes[axes].append(name)
    return json.dumps({"cases": cases, "families": of_axes}, separators=(",", ":"), sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())

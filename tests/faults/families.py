"""Tells what each family of inputs of the operators costs, and which faults it kills that no other family does.

``python -m tests.faults.families KILLERS… --out FILE``. KILLERS is what ``python -m tests.faults.killers`` has written.
With ``--keep SECONDS``, the cells keep the families that kill most, and leave the others to the deep tier: it writes
``left_to_deep.toml``. ``--measured`` takes the seconds of a FILE in place of new ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from conformance.suites.operators import inputs
from tests.defects import bench

from . import forks
from .killers import SAMPLES, apart

#: Seconds of each family by the axes of a cell, such as ``float32-inference``.
Seconds = Mapping[str, Mapping[str, float]]
#: A family in the cells of some axes, and the families and axes that see a fault.
Place = tuple[str, str]
Seen = frozenset[Place]
LEFT = Path(inputs.__file__).with_name("left_to_deep.toml")
#: Seconds up to which every place is kept, those up to which one place of each family is, and least seconds of a place.
_CHEAP, _ONE, _LEAST = 1.0, 26.0, 0.01
#: Axes of the dtype in which every family is kept that costs no more than that: tests plant kinds there that are seldom
#: drawn. So they do in the places beside it.
_FIRST = ("float32-inference", "float32-training")
_PLANTED = {
    ("large_inputs.grown", "int64-inference"),
    ("large_inputs.of_each_dtype", "complex64-inference"),
    ("large_inputs.of_each_dtype", "int32-inference"),
    ("large_inputs.of_each_dtype", "uint8-inference"),
    ("model_sizes.model_sizes", "bfloat16-inference"),
    ("model_sizes.model_sizes", "float16-inference"),
    ("model_sizes.model_sizes", "int32-inference"),
    ("settings.other_numbers", "int64-inference"),
    ("special_inputs.long_integers", "int32-inference"),
    ("special_inputs.special_inputs", "int64-inference"),
    ("training.sizes_of_models", "bfloat16-training"),
    ("training.sizes_of_models", "float16-training"),
    ("training.special_gradients", "bfloat16-training"),
    ("variants.arrangements_of_some", "bfloat16-inference"),
    ("variants.arrangements_of_some", "complex64-inference"),
    ("variants.arrangements_of_some", "float16-inference"),
    ("wide_neighbours.wide_neighbours", "float64-inference"),
}
#: What a fault is still worth once one place sees it: a fault like it may be seen by another place alone.
AGAIN = 0.4
#: Weight of a reported bug beside that of a generated fault.
_REPORTED = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the families, and write the seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.families", description=__doc__)
    parser.add_argument("killers", metavar="KILLERS", type=Path, nargs="*", help="files of tests.faults.killers")
    parser.add_argument("--sample", type=int, default=1000, help="cases of operators whose seconds are measured")
    parser.add_argument("--seed", default="families", help="any text")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--keep", type=float, metavar="SECONDS", help="choose what cells leave to the deep tier")
    result = parser.add_mutually_exclusive_group(required=True)
    result.add_argument("--out", type=Path, help="JSON file of the seconds")
    result.add_argument("--measured", type=Path, help="the file that --out has written")
    options = parser.parse_args(arguments)
    if options.measured is not None:
        seconds = json.loads(options.measured.read_text(encoding="utf-8"))
    else:
        bench.loaded("sim")
        forks.prepare()
        seconds = measured(options.sample, options.seed, options.jobs)
        options.out.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
    rows = [json.loads(line) for path in options.killers for line in path.read_text(encoding="utf-8").splitlines()]
    if options.keep is not None:
        faults = [(seen_by(row), _REPORTED if "#" in row["fault"] else 1.0) for row in rows]
        costs = {(name, axes): value for axes, parts in seconds.items() for name, value in parts.items()}
        kept = keep(costs, faults, options.keep)
        LEFT.write_text(text(sorted(costs.keys() - kept)), encoding="utf-8")
        found, live = (sum(1 for seen, _ in faults if seen & places) for places in (kept, costs.keys()))
        spent = sum(costs[place] for place in kept)
        print(f"{spent:.0f} of {sum(costs.values()):.0f} s, {found} of {live} faults\n")
    print(table(seconds, [{name for names in row["reds"].values() for name in names} for row in rows]))
    return 0


def measured(sample: int, seed: str, jobs: int) -> Seconds:
    """Return the processor seconds of each family in all cells of the same axes, measured in some of them."""
    every = [id for id in bench.plan("operators") if not id.endswith("[error-inputs]")]
    chosen = random.Random(seed).sample(every, min(sample, len(every)))
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for timed in forks.run(chosen, _measure, jobs):
        found[axes(timed.task)].update(timed.messages[-1] if timed.messages else {})
    some, whole = Counter(map(axes, chosen)), Counter(map(axes, every))
    return {
        name: {family: value * whole[name] / some[name] for family, value in parts.items()}
        for name, parts in found.items()
    }


def seen_by(row: Mapping[str, Any]) -> Seen:
    """Return the families, in the axes of their cells, that see the fault of a row of KILLERS."""
    return frozenset((name, axes(case)) for case, names in row["reds"].items() for name in names)


def keep(costs: Mapping[Place, float], faults: Sequence[tuple[Seen, float]], budget: float) -> set[Place]:
    """Return the places that cells keep: again and again the one that kills most per second, within the budget.

    The samples are kept, what costs little, and of each family the place that kills most per second. ``faults`` are
    what sees each fault, and its weight.
    """
    seeing: dict[Place, list[int]] = {place: [] for place in costs}
    for number, (seen, _) in enumerate(faults):
        for place in seen & costs.keys():
            seeing[place].append(number)
    best_of: dict[str, Place] = {}
    for place in sorted(costs, key=lambda place: len(seeing[place]) / max(costs[place], _LEAST)):
        best_of[place[0]] = place
    kept = {place for place, cost in costs.items() if place[0] == SAMPLES or cost <= _CHEAP}
    kept |= {place for place in costs if place in best_of.values() or place[1] in _FIRST if costs[place] <= _ONE}
    kept |= _PLANTED & costs.keys()
    for place in kept:
        del seeing[place]
    spent = sum(costs[place] for place in kept)
    worth = [weight * AGAIN ** len(seen & kept) for seen, weight in faults]

    def per_second(place: Place) -> float:
        return sum(worth[number] for number in seeing[place]) / max(costs[place], _LEAST)

    while fitting := [place for place in seeing if spent + costs[place] <= budget]:
        best = max(fitting, key=lambda place: (per_second(place), place))
        if not seeing[best]:
            break
        kept.add(best)
        spent += costs[best]
        for number in seeing.pop(best):
            worth[number] *= AGAIN
    return kept


def text(left: Iterable[Place]) -> str:
    """Return the text of ``left_to_deep.toml``."""
    cells: dict[str, list[str]] = defaultdict(list)
    for name, where in left:
        cells[name].append(where)
    head = "# Cells that have a family of inputs in the deep tier alone: what it costs there kills more elsewhere.\n"
    made = "# Written by `python -m tests.faults.families --keep SECONDS`.\n\n"
    rows = [f"{json.dumps(name)} = [\n" + "".join(f'    "{each}",\n' for each in cells[name]) + "]\n" for name in cells]
    return head + made + "".join(rows)


def axes(id: str) -> str:
    """Return what stands in the brackets of a case's id."""
    return id.partition("[")[2].removesuffix("]")


def _measure(case: str, send: forks.Send) -> None:
    """Send the seconds of each family of a case on the healthy device."""
    place = bench.Bench()
    with apart() as record:
        place.run(case)
        record.seconds.clear()  # the first run imports
        place.run(case)
    send(dict(record.seconds))


def table(seconds: Seconds, kills: Iterable[set[str]]) -> str:
    """Return the families, the dearest first: seconds of a whole run, faults that each kills, and kills alone."""
    spent, every, alone = Counter[str](), Counter[str](), Counter[str]()
    for parts in seconds.values():
        spent.update(parts)
    for names in kills:
        every.update(names)
        alone.update(names if len(names) == 1 else ())
    rows = [
        (name, f"{spent[name]:.1f}", every[name], alone[name])
        for name in sorted({*spent, *every}, key=lambda name: -spent[name])
    ]
    return tabulate(rows, ["family", "seconds", "kills", "alone"], disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())

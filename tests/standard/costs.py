"""Renews the measured costs of cases: ``python -m tests.standard.costs REPORT``, with the report of a whole run.

``--simulate`` prints how long the run would take with other numbers of workers, beside the bound that no order of cases
can beat.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from conformance.plan.costs import DEAR, FILE, Costs, is_compiled
from conformance.reports.loading import load
from conformance.runner.scheduling import Due, Groups, group_of

#: Workers of the simulated runs.
WORKERS = (1, 2, 4, 8, 16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of costs, or print the simulated runs."""
    parser = argparse.ArgumentParser(prog="python -m tests.standard.costs", description=__doc__)
    parser.add_argument("report", metavar="REPORT", type=Path, help="report folder or report.json of a whole run")
    parser.add_argument("--simulate", action="store_true", help="write nothing; print the lengths of simulated runs")
    options = parser.parse_args(arguments)
    cases = load(options.report).cases
    seconds = {case.id: case.seconds for case in cases}
    costs = costs_of(seconds)
    if options.simulate:
        compiled = {case.id for case in cases if is_compiled(case.requires)}
        due = {case.id: Due(group_of(case.requires, case.world_size, case.tier), case.seconds) for case in cases}
        print("\n".join(table(due, costs.ranks(seconds, compiled))))
        return 0
    FILE.write_text(text(costs), encoding="utf-8")
    print(f"{FILE.name}: {len(costs.cases)} of {len(seconds)} cases take {DEAR:g} s and more")
    return 0


def costs_of(seconds: Mapping[str, float]) -> Costs:
    """Return the costs of cases that took these seconds."""
    dear = {id: round(taken, 2) for id, taken in seconds.items() if taken >= DEAR}
    others: dict[str, list[float]] = defaultdict(list)
    for id, taken in seconds.items():
        if id not in dear:
            others[id.partition(".")[0]].append(taken)
    return Costs(dear, {area: round(median(taken), 4) for area, taken in sorted(others.items())})


def text(costs: Costs) -> str:
    """Return the file's text, the dearest case first."""
    ordered = dict(sorted(costs.cases.items(), key=lambda row: (-row[1], row[0])))
    return json.dumps({"areas": dict(costs.areas), "cases": ordered}, indent=0) + "\n"


def table(due: Mapping[str, Due], ranks: Mapping[str, tuple[int, float]]) -> list[str]:
    """Return one line for each number of workers: the simulated length, the bound, and the difference in percent."""
    order = [due[id] for id in sorted(due, key=ranks.__getitem__)]
    lines = ["workers  simulated s  bound s  above"]
    for workers in WORKERS:
        length, least = simulated(order, workers), bound((case.seconds for case in order), workers)
        lines.append(f"{workers:7d}  {length:11.1f}  {least:7.1f}  {length / least - 1:5.1%}")
    return lines


def bound(seconds: Iterable[float], workers: int) -> float:
    """Return the seconds that no order of the cases can beat."""
    taken = list(seconds)
    return max(sum(taken) / workers, max(taken))


def simulated(order: Sequence[Due], workers: int) -> float:
    """Return the seconds of a run of the cases in this order.

    A worker holds the case that it runs and one more, and gets another when it ends one.
    """
    groups, waiting, living = Groups(order, workers), list(range(len(order))), range(workers)
    held: list[deque[int]] = [deque() for _ in living]

    def give(worker: int, cases: int) -> None:
        for _ in range(min(cases, len(waiting))):
            held[worker].append(waiting.pop(groups.choose(waiting, worker, living)))

    for worker in living:
        give(worker, 2)
    running = [(order[cases[0]].seconds, worker) for worker, cases in enumerate(held) if cases]
    heapq.heapify(running)
    now = 0.0
    while running:
        now, worker = heapq.heappop(running)
        held[worker].popleft()
        give(worker, 1)
        if held[worker]:
            heapq.heappush(running, (now + order[held[worker][0]].seconds, worker))
    return now


if __name__ == "__main__":
    sys.exit(main())

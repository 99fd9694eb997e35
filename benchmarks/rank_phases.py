"""Phases of a trivial case on ranks: the time of each step from pytest to the ranks and back."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.process import PLAIN, PLUGINS, run
from benchmarks.table import Row, main

_CASES = """
import rank_events
import torch
import torch.distributed as dist
from conformance.plan.case import case

rank_events.watch_stages()

@case("bench.all_reduce", axes={{"n": [str(n) for n in range({cases})]}}, world_size={world})
def test_all_reduce(n, world_size, group, check):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [world_size] * 4
    check.metric("stages", rank_events.stages())
"""
#: Phases of a case with their first and last event, in order of time.
PHASES = (
    ("pytest: set-up, fixtures, journal", "case begins", "pool begins"),
    ("pool: take ranks, send the work", "pool begins", "execution begins"),
    ("the work arrives", "execution begins", "rank: before the body"),
    ("rank: state, function", "rank: before the body", "rank: joining the group"),
    ("rank: group, arguments, seeds", "rank: joining the group", "rank: in the body"),
    ("rank: body", "rank: in the body", "rank: body returned"),
    ("the end is reported, the request to leave arrives", "rank: body returned", "rank: leaving the group"),
    ("rank: group and state released", "rank: leaving the group", "rank: idle"),
    ("all ranks report that they are done", "rank: idle", "all done"),
    ("pool: outcome", "all done", "pool ends"),
    ("pytest: verdict, tear-down, journal, report", "pool ends", "case ends"),
    ("the whole case", "case begins", "case ends"),
)

Case = Mapping[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=200, help="cases per run (default: 200)")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4], help="numbers of ranks (default: 2 4)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    return [row for world in arguments.worlds for row in rows(world, events(world, arguments.cases))]


def rows(world: int, cases: Sequence[Case]) -> list[Row]:
    """Return medians and 5th percentiles by phase; a busy machine changes the latter least."""
    phases = []
    for name, begin, end in PHASES:
        taken = sorted(1e3 * (case[end] - case[begin]) for case in cases if begin in case and end in case)
        if taken:
            here = f"{statistics.median(taken):.2f} (p5 {taken[len(taken) // 20]:.2f})"
            phases.append(Row(f"{world} ranks, {name} (ms)", here))
    return [*phases, Row("load average meanwhile", f"{os.getloadavg()[0]:.1f}")]


def events(world: int, cases: int) -> list[Case]:
    """Return the events of each case by name, without the first five cases, which wait for ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_phases.py").write_text(_CASES.format(world=world, cases=cases), encoding="utf-8")
        finished = run(
            [sys.executable, "-m", "pytest", "-q", "-p", "rank_events", *PLAIN,
             "test_phases.py", "--accelerator=cpu", "-n0"],
            cwd=folder,
            environment={"PYTHONPATH": f"{PLUGINS}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
                         "RANK_EVENTS_FILE": str(folder / "events.json")},
        )  # fmt: skip
        if finished.status:
            raise SystemExit(f"the run ended with status {finished.status}:\n{finished.output[-2000:]}")
        return by_case(json.loads((folder / "events.json").read_text(encoding="utf-8")))[5:]


def by_case(timed: Sequence[tuple[float, str]]) -> list[Case]:
    """Return the events grouped by case; a case lasts until the next one begins."""
    cases: list[dict[str, float]] = []
    for at, name in sorted(timed):
        if name == "case begins":
            cases.append(defaultdict(float))
        if cases:
            cases[-1][name] = at
    return [*cases]


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)

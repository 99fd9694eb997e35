"""Where the time of one trivial case on ranks goes, from hand to hand, with pytest around it."""

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
from conformance.case import case

rank_events.watch_stages()

@case("bench.all_reduce", axes={{"n": [str(n) for n in range({cases})]}}, world_size={world})
def test_all_reduce(n, world_size, group, check):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [world_size] * 4
    check.metric("stages", rank_events.stages())
"""
#: What lies between two events of one case, in the order in which they happen.
PHASES = (
    ("pytest: set-up, fixtures, journal", "case begins", "pool begins"),
    ("pool: take ranks, send the work", "pool begins", "round begins"),
    ("the work arrives", "round begins", "rank: before the body"),
    ("rank: state, function", "rank: before the body", "rank: joining the group"),
    ("rank: group, arguments, seeds", "rank: joining the group", "rank: in the body"),
    ("rank: body", "rank: in the body", "rank: body returned"),
    ("end is told, leave arrives", "rank: body returned", "rank: leaving the group"),
    ("rank: group and state given back", "rank: leaving the group", "rank: idle"),
    ("done is told, by all", "rank: idle", "all done"),
    ("pool: evidence", "all done", "pool ends"),
    ("pytest: verdict, tear-down, journal, report", "pool ends", "case ends"),
    ("the whole case", "case begins", "case ends"),
)

Case = Mapping[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=200, help="cases a run (default: 200)")
    parser.add_argument("--worlds", type=int, nargs="*", default=[2, 4], help="numbers of ranks (default: 2 4)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    return [row for world in arguments.worlds for row in rows(world, events(world, arguments.cases))]


def rows(world: int, cases: Sequence[Case]) -> list[Row]:
    """Medians and the fastest twentieth, which a busy machine changes least."""
    found = []
    for name, begin, end in PHASES:
        taken = sorted(1e3 * (case[end] - case[begin]) for case in cases if begin in case and end in case)
        if taken:
            here = f"{statistics.median(taken):.2f} (p5 {taken[len(taken) // 20]:.2f})"
            found.append(Row(f"{world} ranks, {name} (ms)", here))
    return [*found, Row("load while it was measured", f"{os.getloadavg()[0]:.1f}")]


def events(world: int, cases: int) -> list[Case]:
    """Each case's events by name, but the first ones', which wait for ranks."""
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


def by_case(all_of_them: Sequence[tuple[float, str]]) -> list[Case]:
    """What happened between the beginnings of two cases belongs to the former."""
    found: list[dict[str, float]] = []
    for at, name in sorted(all_of_them):
        if name == "case begins":
            found.append(defaultdict(float))
        if found:
            found[-1][name] = at
    return found


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)

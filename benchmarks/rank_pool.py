"""A trivial all-reduce on 2 and 4 ranks: what one distributed case costs here, and with the launchers of others."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import PLAIN, PLUGINS, run
from benchmarks.rank_pool_peers import Launcher, add_arguments, launchers
from benchmarks.table import Row, main, times

WORLDS = (2, 4)
GOALS = {2: "≤ 6 ms", 4: "≤ 15 ms"}


@dataclass(frozen=True)
class Measured:
    """Milliseconds a case: the first one, and the median of the others.

    ``once_up`` is the first one without the wait for the zygote, for launchers that have one.
    """

    first: float
    median: float
    p90: float
    once_up: float | None = None


def measure(arguments: argparse.Namespace) -> list[Row]:
    load = f"{os.getloadavg()[0]:.1f}"
    found = [row for world in arguments.worlds for row in rows(world, launchers(arguments))]
    return [*found, Row("load before and after", f"{load}, {os.getloadavg()[0]:.1f}")]


def rows(world: int, all_of_them: Sequence[Launcher]) -> list[Row]:
    measured = [(launcher, one_run(launcher, world)) for launcher in all_of_them]
    ours = next(numbers for launcher, numbers in measured if launcher.ours)
    found = [
        Row(f"first case on {world} ranks, after collection (ms)", f"{ours.first:.0f}"),
        Row(f"first case on {world} ranks, once the zygote is up (ms)", f"{ours.once_up:.0f}", "≤ 500 ms"),
        Row(f"a case on {world} ranks, median (ms)", f"{ours.median:.1f} (p90 {ours.p90:.1f})", GOALS[world]),
    ]
    for launcher, theirs in measured:
        if not launcher.ours:
            peer = f"{theirs.median:.1f}, first {theirs.first:.0f} ({launcher.name})"
            ratio, goal = times(theirs.median / ours.median), launcher.goal if world == min(GOALS) else ""
            found.append(Row(f"… on {world} ranks", f"{ours.median:.1f}", goal, peer, ratio))
    return found


def one_run(launcher: Launcher, world: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = launcher.source.format(world=world, cases=launcher.cases, **dict(launcher.fields))
        (folder / "test_ranks.py").write_text(source, encoding="utf-8")
        (folder / "conftest.py").write_text(launcher.conftest, encoding="utf-8")
        plugins = ("-p", "each_case", *(("-p", "zygote_up") if launcher.ours else ()))
        finished = run(
            [launcher.python, "-m", "pytest", "-q", *plugins, *PLAIN,
             "test_ranks.py", *launcher.arguments],
            cwd=folder,
            environment={
                "PYTHONPATH": os.pathsep.join(map(str, (*launcher.paths, PLUGINS))),
                "EACH_CASE_FILE": str(folder / "times.json"),
                "ZYGOTE_UP_FILE": str(folder / "zygote_up"),
                "LOCAL_SIZE": str(world),  # how many devices DeepSpeed's CPU accelerator says there are
            },
        )  # fmt: skip
        if finished.status:
            tail = "\n".join(finished.output.splitlines()[-20:])
            raise SystemExit(f"{launcher.name} on {world} ranks ended with status {finished.status}:\n{tail}")
        return _measured(folder)


def _measured(folder: Path) -> Measured:
    seen = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    first, *rest = (1e3 * value for value in seen["seconds"])
    file, once_up = folder / "zygote_up", None
    if file.exists():
        once_up = first - 1e3 * max(0.0, float(file.read_text(encoding="utf-8")) - seen["at"])
    return Measured(first, statistics.median(rest), sorted(rest)[int(0.9 * len(rest))], once_up)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--worlds", type=int, nargs="*", choices=WORLDS, default=WORLDS, help="numbers of ranks")


if __name__ == "__main__":
    main(__doc__ or "", _arguments, measure)

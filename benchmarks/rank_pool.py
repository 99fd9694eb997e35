"""Cost of a distributed case: a trivial all-reduce on 2 and 4 ranks, here and with other launchers.

A case consists of messages between processes. They take longer on a busy machine, and on a virtual machine whose
hypervisor gives its processors to others (stolen time). Launchers that take milliseconds a case therefore run several
rounds, in turn. For each launcher, the round with the least stolen time counts, whatever its result is.
"""

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
GOALS = {2: "≤ 10 ms", 4: "≤ 15 ms"}


@dataclass(frozen=True)
class Measured:
    """Milliseconds of the first case, and median and 90th percentile of the others.

    ``once_up`` is the time of the first case without the wait for the fork server, for launchers that have one.
    ``stolen`` is the share of the processors' time that a hypervisor gave to other machines meanwhile.
    """

    first: float
    median: float
    p90: float
    once_up: float | None = None
    stolen: float = 0.0


def measure(arguments: argparse.Namespace) -> list[Row]:
    load = f"{os.getloadavg()[0]:.1f}"
    measured = [row for world in arguments.worlds for row in rows(world, launchers(arguments), arguments)]
    return [*measured, Row("load before and after", f"{load}, {os.getloadavg()[0]:.1f}")]


def rows(world: int, candidates: Sequence[Launcher], arguments: argparse.Namespace) -> list[Row]:
    rounds = in_turn(world, candidates, arguments)
    measured = [(launcher, min(results, key=lambda result: result.stolen)) for launcher, results in rounds]
    ours, all_ours = next((measured[i][1], rounds[i][1]) for i, launcher in enumerate(candidates) if launcher.ours)
    medians = sorted(result.median for result in all_ours)
    found = [
        Row(f"first case on {world} ranks, after collection (ms)", f"{ours.first:.0f}"),
        Row(f"first case on {world} ranks, once the fork server is up (ms)", f"{ours.once_up:.0f}", "≤ 500 ms"),
        Row(f"a case on {world} ranks, median (ms)", f"{ours.median:.1f} (p90 {ours.p90:.1f})", GOALS[world]),
        Row(f"… on {world} ranks, time stolen meanwhile", f"{100 * ours.stolen:.1f} %"),
        Row(f"… on {world} ranks, medians of all rounds (ms)", " ".join(f"{median:.1f}" for median in medians)),
    ]
    for launcher, theirs in measured:
        if not launcher.ours:
            peer = f"{theirs.median:.1f}, first {theirs.first:.0f} ({launcher.name})"
            ratio, goal = times(theirs.median / ours.median), launcher.goal if world == min(GOALS) else ""
            found.append(Row(f"… on {world} ranks", f"{ours.median:.1f}", goal, peer, ratio))
    return found


def in_turn(
    world: int, candidates: Sequence[Launcher], arguments: argparse.Namespace
) -> list[tuple[Launcher, list[Measured]]]:
    """Return the results of each launcher: of every round if it runs as many cases as ours, otherwise of one round."""
    results: list[tuple[Launcher, list[Measured]]] = [(launcher, []) for launcher in candidates]
    for turn in range(max(1, arguments.rounds)):
        for launcher, measured in results:
            if turn == 0 or launcher.cases == arguments.cases:
                measured.append(one_run(launcher, world))
    return results


def one_run(launcher: Launcher, world: int) -> Measured:
    """Run the launcher's cases under pytest and return their times; SystemExit if the run fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = launcher.source.format(world=world, cases=launcher.cases, **dict(launcher.fields))
        (folder / "test_ranks.py").write_text(source, encoding="utf-8")
        (folder / "conftest.py").write_text(launcher.conftest, encoding="utf-8")
        plugins = ("-p", "each_case", *(("-p", "fork_server_up") if launcher.ours else ()))
        before = processor_time()
        finished = run(
            [launcher.python, "-m", "pytest", "-q", *plugins, *PLAIN,
             "test_ranks.py", *launcher.arguments],
            cwd=folder,
            environment={
                "PYTHONPATH": os.pathsep.join(map(str, (*launcher.paths, PLUGINS))),
                "EACH_CASE_FILE": str(folder / "times.json"),
                "FORK_SERVER_UP_FILE": str(folder / "fork_server_up"),
                "LOCAL_SIZE": str(world),  # the number of devices of DeepSpeed's CPU accelerator
            },
        )  # fmt: skip
        if finished.status:
            tail = "\n".join(finished.output.splitlines()[-20:])
            raise SystemExit(f"{launcher.name} on {world} ranks ended with status {finished.status}:\n{tail}")
        stolen, all_time = (now - then for now, then in zip(processor_time(), before, strict=True))
        return _measured(folder, stolen / max(all_time, 1))


def processor_time() -> tuple[int, int]:
    """Return the stolen and the total time of all processors, in ticks; zeros where the kernel does not tell."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[7], sum(ticks)


def _measured(folder: Path, stolen: float) -> Measured:
    seen = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    first, *rest = (1e3 * value for value in seen["seconds"])
    file, once_up = folder / "fork_server_up", None
    if file.exists():
        once_up = first - 1e3 * max(0.0, float(file.read_text(encoding="utf-8")) - seen["at"])
    return Measured(first, statistics.median(rest), sorted(rest)[int(0.9 * len(rest))], once_up, stolen)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the fast launchers (default: 5)")
    parser.add_argument("--worlds", type=int, nargs="*", choices=WORLDS, default=WORLDS, help="numbers of ranks")


if __name__ == "__main__":
    main(__doc__ or "", _arguments, measure)

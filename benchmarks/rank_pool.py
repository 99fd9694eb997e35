"""A trivial all-reduce on 2 and 4 ranks: what one distributed case costs here, and with the launchers of others.

A case is hand-overs between processes, which a busy machine makes longer, and a virtual one whose processors are given
to others. So the launchers that take milliseconds a case have several rounds, in turn, and of each that round counts in
which the least time was stolen: the machine says how much, whatever came out.
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
GOALS = {2: "≤ 6 ms", 4: "≤ 15 ms"}


@dataclass(frozen=True)
class Measured:
    """Milliseconds a case: the first one, and the median of the others.

    ``once_up`` is the first one without the wait for the zygote, for launchers that have one. ``stolen`` is the share
    of the processors' time that a hypervisor gave to others meanwhile.
    """

    first: float
    median: float
    p90: float
    once_up: float | None = None
    stolen: float = 0.0


def measure(arguments: argparse.Namespace) -> list[Row]:
    load = f"{os.getloadavg()[0]:.1f}"
    found = [row for world in arguments.worlds for row in rows(world, launchers(arguments), arguments)]
    return [*found, Row("load before and after", f"{load}, {os.getloadavg()[0]:.1f}")]


def rows(world: int, all_of_them: Sequence[Launcher], arguments: argparse.Namespace) -> list[Row]:
    rounds = in_turn(world, all_of_them, arguments)
    measured = [(launcher, min(found, key=lambda one: one.stolen)) for launcher, found in rounds]
    ours, all_ours = next((measured[i][1], rounds[i][1]) for i, one in enumerate(all_of_them) if one.ours)
    medians = sorted(one.median for one in all_ours)
    found = [
        Row(f"first case on {world} ranks, after collection (ms)", f"{ours.first:.0f}"),
        Row(f"first case on {world} ranks, once the zygote is up (ms)", f"{ours.once_up:.0f}", "≤ 500 ms"),
        Row(f"a case on {world} ranks, median (ms)", f"{ours.median:.1f} (p90 {ours.p90:.1f})", GOALS[world]),
        Row(f"… on {world} ranks, time stolen meanwhile", f"{100 * ours.stolen:.1f} %"),
        Row(f"… on {world} ranks, medians of all rounds (ms)", " ".join(f"{one:.1f}" for one in medians)),
    ]
    for launcher, theirs in measured:
        if not launcher.ours:
            peer = f"{theirs.median:.1f}, first {theirs.first:.0f} ({launcher.name})"
            ratio, goal = times(theirs.median / ours.median), launcher.goal if world == min(GOALS) else ""
            found.append(Row(f"… on {world} ranks", f"{ours.median:.1f}", goal, peer, ratio))
    return found


def in_turn(
    world: int, all_of_them: Sequence[Launcher], arguments: argparse.Namespace
) -> list[tuple[Launcher, list[Measured]]]:
    """Every launcher once, and those that do as many cases as we do in every round."""
    found: list[tuple[Launcher, list[Measured]]] = [(launcher, []) for launcher in all_of_them]
    for turn in range(max(1, arguments.rounds)):
        for launcher, measured in found:
            if turn == 0 or launcher.cases == arguments.cases:
                measured.append(one_run(launcher, world))
    return found


def one_run(launcher: Launcher, world: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = launcher.source.format(world=world, cases=launcher.cases, **dict(launcher.fields))
        (folder / "test_ranks.py").write_text(source, encoding="utf-8")
        (folder / "conftest.py").write_text(launcher.conftest, encoding="utf-8")
        plugins = ("-p", "each_case", *(("-p", "zygote_up") if launcher.ours else ()))
        before = processor_time()
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
        stolen, all_time = (now - then for now, then in zip(processor_time(), before, strict=True))
        return _measured(folder, stolen / max(all_time, 1))


def processor_time() -> tuple[int, int]:
    """What all processors have spent with others, and in all, in ticks; zeros where no kernel says it."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[7], sum(ticks)


def _measured(folder: Path, stolen: float) -> Measured:
    seen = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    first, *rest = (1e3 * value for value in seen["seconds"])
    file, once_up = folder / "zygote_up", None
    if file.exists():
        once_up = first - 1e3 * max(0.0, float(file.read_text(encoding="utf-8")) - seen["at"])
    return Measured(first, statistics.median(rest), sorted(rest)[int(0.9 * len(rest))], once_up, stolen)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the quick launchers (default: 5)")
    parser.add_argument("--worlds", type=int, nargs="*", choices=WORLDS, default=WORLDS, help="numbers of ranks")


if __name__ == "__main__":
    main(__doc__ or "", _arguments, measure)

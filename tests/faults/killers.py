"""Records every case that kills a drawn fault: ``python -m tests.faults.killers --draws N --seed S --out FILE``.

A score needs one killing case for each fault. A choice of cases, such as the profile ``standard``, needs all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.defects import bench

from . import corpus, forks, population, recording
from .fault import Fault, Hits
from .judging import candidates
from .liveness import Shown, armed, show

#: Cases that each fault goes through, and seconds of processor time for all of them and for one.
MOST, _SECONDS, _DEADLINE = 16, 15.0, 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one JSON line for each live fault: its id, the cases that ran, and those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.killers", description=__doc__)
    parser.add_argument("--draws", type=int, default=700, help="faults to draw, the same number of each family")
    parser.add_argument("--seed", default="killers", help="any text; not the seed of a published score")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--only-new", action="store_true", help="record only the cases that the newest map lacks")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    options = parser.parse_args(arguments)
    bench.loaded("sim")
    forks.prepare()
    tasks = [(fault, own[:MOST]) for fault, own in live(options.draws, options.seed, options.jobs, options.only_new)]
    random.Random(options.seed).shuffle(tasks)  # a part of the file is a sample of all families
    started = time.perf_counter()
    with options.out.open("w", encoding="utf-8") as file:
        for number, copy in enumerate(forks.run(tasks, _judge, options.jobs), 1):
            file.write(json.dumps(_row(copy)) + "\n")
            file.flush()
            if number % 50 == 0:
                print(f"{number} of {len(tasks)} faults in {time.perf_counter() - started:.0f} s", flush=True)
    return 0


def live(draws: int, seed: str, jobs: int, only_new: bool = False) -> list[tuple[Fault, list[str]]]:
    """Return drawn faults that a direct call shows, each with the cases that it meets."""
    found = recording.kept(accelerator="sim", narrow=True, processes=jobs, only_new=only_new)
    known = corpus.read()
    assert known is not None
    faults = population.drawn(population.families(), draws, seed, found, known.inputs)
    shown: dict[Fault, Shown] = {}
    for copy in forks.run(faults, lambda fault, send: show(fault, found, known, "sim", send), jobs):
        shown[copy.task] = copy.messages[-1] if copy.messages else Shown(False)
    chosen = [fault for fault in faults if shown[fault].live]
    meeting = [(fault, own) for fault in chosen if (own := candidates(fault, found)[0])]
    print(f"{len(chosen)} of {len(faults)} faults are live, {len(meeting)} meet a case", flush=True)
    return meeting


def _judge(task: tuple[Fault, list[str]], send: forks.Send) -> None:
    """Run the cases on the broken device, all of them, and send what came of each."""
    fault, cases = task
    place = bench.Bench()
    started = time.process_time()
    with armed(fault, Hits(), place.device):
        for case in cases:
            if time.process_time() - started > _SECONDS:
                break
            send(("begin", case))
            forks.limit(_DEADLINE)
            red = bench.is_red(place.run(case))
            forks.limit(0)
            send(("end", case, red))


def _row(copy: forks.Copy[tuple[Fault, list[str]]]) -> dict[str, Any]:
    """Return a fault with the cases that ran and those that failed. A case in which the copy died has failed too."""
    ran = [message[1] for message in copy.messages if message[0] == "begin"]
    ended = {message[1]: message[2] for message in copy.messages if message[0] == "end"}
    return {"fault": copy.task[0].id, "ran": ran, "reds": [case for case in ran if ended.get(case, True)]}


if __name__ == "__main__":
    sys.exit(main())

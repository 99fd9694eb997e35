"""Tells what each family of inputs of the operators costs, and which faults it kills that no other family does.

``python -m tests.faults.families --draws N --seed S --out FILE``. Faults are drawn ones and, with ``--reported``, the
reported bugs that are not held out. In each case every family runs, also after one that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from conformance.suites.operators import cell
from conformance.suites.operators.inputs import families
from tests.defects import bench

from . import forks, killers
from .fault import Hits
from .liveness import armed
from .reported import run as reported
from .reported.results import Bug, bugs

#: The samples of the database, which every cell has beside its families.
SAMPLES = "samples"
#: Processor seconds of one case.
_DEADLINE = 30.0
#: Cases of one fault. A fault acts in a few cells of an operator alike.
_MOST = 8


@dataclass
class Record:
    """What the families of one process have seen: those that failed, and the processor seconds of each."""

    red: set[str] = field(default_factory=set)
    seconds: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def apart() -> Iterator[Record]:
    """Let every family of a cell run, also after one that fails, and note what it takes and whether it fails."""
    record = Record()
    parts = {(cell, "_check_inference"): SAMPLES, (cell, "_check_training"): SAMPLES, (families.Family, "run"): ""}
    whole = {place: getattr(*place) for place in parts}
    for place, name in parts.items():
        setattr(*place, _noting(whole[place], name, record))
    try:
        yield record
    finally:
        for place, function in whole.items():
            setattr(*place, function)


def _noting(function: Any, name: str, record: Record) -> Any:
    def noted(first: Any, *more: Any, **options: Any) -> Any:
        known, started = name or f"{first.mode.value} {first.name}", time.process_time()
        try:
            return function(first, *more, **options)
        except Exception:  # a broken device may raise what it likes
            record.red.add(known)
        finally:
            record.seconds[known] += time.process_time() - started

    return noted


def _judge(arm: Any, cases: Iterable[str], send: forks.Send) -> None:
    """Send the families that fail on the broken device, for each case."""
    place = bench.Bench()
    with arm(place.device), apart() as record:
        for case in cases:
            record.red.clear()
            send(("begin", case))
            forks.limit(_DEADLINE)
            place.run(case)
            forks.limit(0)
            send(("end", case, sorted(record.red)))


def _measure(case: str, send: forks.Send) -> None:
    """Send the seconds of each family of a case on the healthy device."""
    place = bench.Bench()
    with apart() as record:
        place.run(case)
        record.seconds.clear()  # the first run imports
        place.run(case)
    send(dict(record.seconds))


def _drawn(draws: int, seed: str, jobs: int) -> list[Any]:
    """Return a task for each drawn fault that is live and meets a case of an operator."""
    meeting = [(fault, [id for id in own if _is_cell(id)]) for fault, own in killers.live(draws, seed, jobs)]
    return [(str(fault), partial(_armed_fault, fault), own[:_MOST]) for fault, own in meeting if own]


def _armed_fault(fault: Any, device: Any) -> Any:
    return armed(fault, Hits(), device)


def _reported() -> list[Any]:
    """Return a task for each reported bug that is not held out and acts in a case of an operator."""
    chosen: list[Bug] = [bug for bug in bugs() if not (bug.held or bug.is_collective)]
    own = {bug.report: [id for id in bench.select(bug.cases) if _is_cell(id)][:_MOST] for bug in chosen}
    return [(bug.report, partial(reported.armed, bug), own[bug.report]) for bug in chosen if own[bug.report]]


def _is_cell(id: str) -> bool:
    return id.startswith("operators.") and not id.endswith("[error-inputs]")


def _kills(copy: forks.Copy[Any]) -> set[str]:
    """Return the families that see a fault in any of its cases."""
    return {name for message in copy.messages if message[0] == "end" for name in message[2]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the families, and write its numbers and the faults that one family alone kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.families", description=__doc__)
    parser.add_argument("--draws", type=int, default=700, help="faults to draw, the same number of each family")
    parser.add_argument("--seed", default="families", help="any text")
    parser.add_argument("--reported", action="store_true", help="look for the reported bugs too")
    parser.add_argument("--sample", type=int, default=600, help="cases of operators whose seconds are measured")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args(arguments)
    bench.loaded("sim")
    forks.prepare()
    every = [id for id in bench.plan("operators") if _is_cell(id)]
    measured = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    seconds: Counter[str] = Counter()
    for timed in forks.run(measured, _measure, options.jobs):
        seconds.update(timed.messages[-1] if timed.messages else {})
    scaled = {name: value * len(every) / len(measured) for name, value in seconds.items()}
    tasks = [*_drawn(options.draws, options.seed, options.jobs), *(_reported() if options.reported else ())]
    kills: dict[str, list[str]] = {}
    for copy in forks.run(tasks, lambda task, send: _judge(*task[1:], send), options.jobs):
        kills[copy.task[0]] = sorted(_kills(copy))
        if len(kills) % 50 == 0:
            print(f"{len(kills)} of {len(tasks)} faults", flush=True)
    options.out.write_text(json.dumps({"seconds": scaled, "kills": kills}, indent=1) + "\n", encoding="utf-8")
    print(table(scaled, kills))
    return 0


def table(seconds: Mapping[str, float], kills: Mapping[str, Sequence[str]]) -> str:
    """Return the families, the dearest first: seconds of a whole run, faults that each kills, and kills alone."""
    every, alone = Counter[str](), Counter[str]()
    for names in kills.values():
        every.update(names)
        alone.update(names if len(names) == 1 else ())
    rows = [
        (name, f"{seconds.get(name, 0):.1f}", every[name], alone[name])
        for name in sorted({*seconds, *every}, key=lambda name: -seconds.get(name, 0))
    ]
    return tabulate(rows, ["family", "seconds", "kills", "alone"], disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())

"""Records every case that kills a drawn fault, and the families of inputs that see it there.

``python -m tests.faults.killers --draws N --seed S --out FILE``. A score needs one killing case for each fault. A
choice of cases and families, such as the profile ``standard``, needs all of them. In each case every family runs, also
after one that fails. With ``--reported``, the reported bugs that are not held out are recorded too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from conformance.accelerators.capabilities import DTYPES
from conformance.suites.operators import cell
from conformance.suites.operators.inputs import families
from tests.defects import bench

from . import corpus, forks, population, recording
from .fault import Fault, Hits
from .judging import candidates, cases_of_callers, is_named_after, shown_by_calls
from .liveness import armed
from .reported import run as reported
from .reported.results import bugs

#: The samples of the database, which every cell has beside its families.
SAMPLES = "samples"
#: Cases that each fault goes through, and seconds of processor time for all of them and for one.
MOST, _SECONDS, _DEADLINE = 24, 40.0, 20.0

#: A fault: its id, how a device is broken by it, and the cases that it meets.
Task = tuple[str, Callable[[Any], AbstractContextManager[Any]], list[str]]


@dataclass
class Record:
    """What the families of one process have seen: those that failed, and the processor seconds of each."""

    red: set[str] = field(default_factory=set)
    seconds: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def apart() -> Iterator[Record]:
    """Let every family of a cell run, also after one that fails, and note what it takes and whether it fails.

    Cells have the families too that they leave to the deep tier.
    """
    record = Record()
    parts = {(cell, "_check_inference"): SAMPLES, (cell, "_check_training"): SAMPLES, (families.Family, "run"): ""}
    whole = {place: getattr(*place) for place in [*parts, (families, "left_to_deep")]}
    for place, name in parts.items():
        setattr(*place, _noting(whole[place], name, record))
    families.left_to_deep = dict  # type: ignore[assignment]  # nothing is left out
    try:
        yield record
    finally:
        for place, function in whole.items():
            setattr(*place, function)


def _noting(function: Any, name: str, record: Record) -> Any:
    def noted(first: Any, *more: Any, **options: Any) -> Any:
        known, started = name or first.name, time.process_time()
        try:
            return function(first, *more, **options)
        except Exception:  # a broken device may raise what it likes
            record.red.add(known)
        finally:
            record.seconds[known] += time.process_time() - started

    return noted


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one JSON line for each live fault: its id, the cases that ran, and the families that failed, by case."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.killers", description=__doc__)
    parser.add_argument("--draws", type=int, default=700, help="faults to draw, the same number of each family")
    parser.add_argument("--seed", default="killers", help="any text; not the seed of a published score")
    parser.add_argument("--family", action="append", choices=population.families(), help="only this family; repeatable")
    parser.add_argument("--reported", action="store_true", help="record the reported bugs too")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--only-new", action="store_true", help="record only the cases that the newest map lacks")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    options = parser.parse_args(arguments)
    bench.loaded("sim")
    forks.prepare()
    drawn = options.family or population.families()
    tasks = _drawn(drawn, options.draws, options.seed, options.jobs, only_new=options.only_new)
    tasks += _reported() if options.reported else []
    random.Random(options.seed).shuffle(tasks)  # a part of the file is a sample of all families
    started = time.perf_counter()
    with options.out.open("w", encoding="utf-8") as file:
        for number, copy in enumerate(forks.run(tasks, _judge, options.jobs), 1):
            file.write(json.dumps(_row(copy)) + "\n")
            file.flush()
            if number % 50 == 0:
                print(f"{number} of {len(tasks)} faults in {time.perf_counter() - started:.0f} s", flush=True)
    return 0


def _drawn(drawn: Sequence[str], draws: int, seed: str, jobs: int, *, only_new: bool) -> list[Task]:
    """Return drawn faults that a direct call shows, each with the cases that it meets."""
    found = recording.kept(accelerator="sim", narrow=True, processes=jobs, only_new=only_new)
    known = corpus.read()
    assert known is not None
    faults = population.drawn(drawn, draws, seed, found, known.inputs)
    shown = shown_by_calls(faults, "sim", found, known, jobs, print)
    chosen = [fault for fault in faults if shown[fault].live]
    every = bench.plan("operators").items()
    wide = [id for id, entry in every if id not in found.cases and entry.case.in_reference]
    meeting = [(fault, own) for fault in chosen if (own := _meeting(fault, found, wide))]
    print(f"{len(chosen)} of {len(faults)} faults are live, {len(meeting)} meet a case", flush=True)
    return [(fault.id, partial(_armed, fault), own[:MOST]) for fault, own in meeting]


def _meeting(fault: Fault, found: recording.Map, wide: Sequence[str]) -> list[str]:
    """Return the cases that a fault may meet, in all dtypes, by chance but for those of its dtype and its name first.

    The map has few dtypes: of the cases that it leaves out, those of the same operators may meet the fault.
    """
    mapped, others = candidates(fault, found)[0], cases_of_callers(fault, found, wide)
    dtypes = {word for word in DTYPES if re.search(rf"\b{word}\b", fault.detail + fault.place)}
    in_its_dtype = [id for id in others if id.partition("[")[2].partition("-")[0] in dtypes]
    own = sorted({*mapped, *others}) if mapped else []
    random.Random(fault.id).shuffle(own)
    own.sort(key=lambda id: not is_named_after(fault.target, id))
    return [*dict.fromkeys([*in_its_dtype, *own])]


def _armed(fault: Fault, device: Any) -> AbstractContextManager[Any]:
    return armed(fault, Hits(), device)


def _reported() -> list[Task]:
    """Return the reported bugs that are not held out and act in a case of an operator."""
    chosen = [bug for bug in bugs() if not (bug.held or bug.is_collective)]
    own = {bug.report: [id for id in bench.select(bug.cases) if id.startswith("operators.")] for bug in chosen}
    return [(bug.report, partial(reported.armed, bug), own[bug.report][:MOST]) for bug in chosen if own[bug.report]]


def _judge(task: Task, send: forks.Send) -> None:
    """Run the cases on the broken device, all of them, and send what came of each."""
    _, arm, cases = task
    place = bench.Bench()
    started = time.process_time()
    with arm(place.device), apart() as record:
        for case in cases:
            if time.process_time() - started > _SECONDS:
                break
            record.red.clear()
            send(("begin", case))
            forks.limit(_DEADLINE)
            red = bench.is_red(place.run(case))
            forks.limit(0)
            # What fails without a family fails in every run of the case.
            send(("end", case, sorted(record.red or {SAMPLES} if red or record.red else ())))


def _row(copy: forks.Copy[Task]) -> dict[str, Any]:
    """Return a fault with the cases that ran and those that failed. A case in which the copy died has failed too."""
    ran = [message[1] for message in copy.messages if message[0] == "begin"]
    ended = {message[1]: message[2] for message in copy.messages if message[0] == "end"}
    reds = {case: ended.get(case, [SAMPLES]) for case in ran}
    return {"fault": copy.task[0], "ran": ran, "reds": {case: names for case, names in reds.items() if names}}


if __name__ == "__main__":
    sys.exit(main())

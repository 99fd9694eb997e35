"""Plant drawn faults in the kernels that programs use, and ask who is to blame: ``python -m tests.blame.run``.

A fault is of the generator's kinds (``tests/faults``), in a kernel that the program calls. A single fault counts if it
moves the end of the program beyond what honest rounding allows. The culprit has to be first; of a pair, both have to
be among the first three.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.blame.program import Program
from conformance.blame.runs import LocalRuns
from conformance.blame.verdict import Answer, Blame, blame
from tests.defects import bench
from tests.faults import forks
from tests.faults.fault import Fault, Hits
from tests.faults.overloads import operator_of
from tests.faults.overriding import Behaviour, Call, overridden
from tests.faults.population import KINDS
from tests.faults.recording import Recorder
from tests.faults.scores import wilson

from . import programs, strangers
from .programs import PROGRAMS

#: Families of faults that change what a kernel computes. Refusals (G) and derivative rules (F) are no kernels' results.
FAMILIES = "ABCDE"
#: Seconds of a processor for one blame.
_LIMIT = 60


@dataclass
class Outcome:
    """What blame has said of a program with faults."""

    program: str
    faults: list[str]
    answer: str = ""
    detail: str = ""
    named: list[str] = field(default_factory=list)
    hits: int = 0
    moved: bool = False
    right: bool = False
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class _Task:
    """A program, faults, and for each fault the operators that the program calls when the kernel runs."""

    program: str
    faults: tuple[Fault, ...] = ()
    callers: tuple[frozenset[str], ...] = ()


class _Callers(TorchDispatchMode):
    """Notes which operators a program calls when a kernel runs: some of PyTorch's own call others below."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.found = "", {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.now = func.name()
        return func(*args, **(kwargs or {}))

    def behaviour(self, kernel: str, behaviour: Behaviour) -> Behaviour:
        def noted(call: Call) -> Any:
            self.found.setdefault(kernel, set()).add(operator_of(self.now))
            return behaviour(call)

        return noted


def _kernels(task: _Task, send: forks.Send) -> None:
    """Send what the kernels get that a program calls, and the operators that call them, by the kernel's name."""
    forks.limit(_LIMIT / 2, patience=4)
    device = torch.device(bench.loaded()[0].current_device_name())
    recorder, callers = Recorder(device), _Callers()
    behaviours = {name: callers.behaviour(name, behaviour) for name, behaviour in recorder.behaviours.items()}
    with overridden(behaviours, "PrivateUse1"), callers:
        recorder.start()
        Program(task.program, PROGRAMS[task.program]).run(device)
    flags = {name: {place: sorted(f) for place, f in places.items()} for name, places in recorder.kernels.items()}
    send((flags, callers.found))


def population(flags: dict[str, Any]) -> dict[str, list[Fault]]:
    """Return every fault of the kernels of a program whose condition can be met, by kernel."""
    found: dict[str, list[Fault]] = {}
    for kind in KINDS.values():
        if kind.family in FAMILIES:
            for kernel, places in flags.items():
                faults = (Fault(kind.family, kind.name, kernel, *target) for target in kind.targets(kernel, places))
                found.setdefault(kernel, []).extend(fault for fault in faults if kind.needs(fault, places))
    return {kernel: faults for kernel, faults in found.items() if faults}


def drawn(found: dict[str, Any], draws: int, seed: str) -> list[_Task]:
    """Draw faults of programs in turn; each kernel of a program has the same chance."""
    dice, tasks = random.Random(seed), []
    every = {program: population(flags) for program, (flags, _) in found.items()}
    for number in range(draws):
        program = sorted(found)[number % len(found)]
        kernel = dice.choice(sorted(every[program]))
        callers = frozenset(found[program][1].get(kernel, {operator_of(kernel)}))
        tasks.append(_Task(program, (dice.choice(every[program][kernel]),), (callers,)))
    return tasks


def paired(singles: Sequence[_Task], pairs: int, seed: str) -> list[_Task]:
    """Draw pairs of faults of one program in different kernels, each of which moves the end alone."""
    every = [
        _Task(one.program, one.faults + other.faults, one.callers + other.callers)
        for number, one in enumerate(singles)
        for other in singles[number + 1 :]
        if one.program == other.program and not one.callers[0] & other.callers[0]
    ]
    return random.Random(f"{seed}:pairs").sample(every, min(pairs, len(every)))


def _judged(task: _Task, send: forks.Send) -> None:
    forks.limit(_LIMIT, patience=4)
    device = torch.device(bench.loaded()[0].current_device_name())
    hits = [Hits() for _ in task.faults]
    armed = {
        fault.target: KINDS[fault.family, fault.kind].behave(fault, hit)
        for fault, hit in zip(task.faults, hits, strict=True)
    }
    begun = time.monotonic()
    with overridden(armed, "PrivateUse1"):
        found = blame(LocalRuns(Program(task.program, PROGRAMS[task.program]), device))
    send(_outcome(task, found, min((hit.count for hit in hits), default=0), time.monotonic() - begun))


def _outcome(task: _Task, found: Blame, hits: int, seconds: float) -> Outcome:
    named = [culprit.name for culprit in found.culprits]
    worst = found.worst_end
    raised = any("raised" in culprit.worst.finding for culprit in found.culprits)
    most = 3 if len(task.faults) > 1 else 1
    first = [name for culprit in found.culprits[:most] for name in (culprit.name, *culprit.others)]
    right = bool(task.faults) and all(_is_among(callers, first) for callers in task.callers)
    moved = raised or (worst is not None and worst.budgets > 1) or found.answer in (Answer.UNSTEADY, Answer.LOOKING)
    return Outcome(
        task.program,
        [str(fault) for fault in task.faults],
        found.answer.name,
        found.detail,
        named,
        hits,
        moved or found.answer in (Answer.OTHER_CALLS, Answer.RAISED),
        right,
        round(seconds, 2),
    )


def _is_among(callers: frozenset[str], named: Sequence[str]) -> bool:
    """Return whether one of the operators is named. ``named`` are overloads such as ``aten.add.Tensor``."""
    return not callers.isdisjoint(operator_of("::".join(name.split(".")[:2])) for name in named)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores, and every miss. Return 1 if a healthy device is blamed."""
    options = _options(arguments)
    bench.loaded()
    programs.load()
    forks.prepare()
    flags = _flags(options.program or sorted(PROGRAMS), options.jobs)
    flags |= _flags_of_strangers(options.strangers, options.seed) if options.strangers else {}
    tasks = [_Task(name) for name in sorted(flags) for _ in range(options.healthy)]
    singles = drawn(flags, options.draws, options.seed)
    judged = _outcomes(tasks + singles, options.jobs)
    moving = [task for task, one in judged if task.faults and one.moved and one.hits]
    judged += _outcomes(paired(moving, options.pairs, options.seed), options.jobs)
    outcomes = [one for _, one in judged]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "blame.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    _say(outcomes, len(flags))
    return 1 if any(_is_accused(one) for one in outcomes if not one.faults) else 0


def _flags(names: Sequence[str], jobs: int) -> dict[str, Any]:
    """Return the kernels of programs. Raises SystemExit for one that does not run on the healthy device."""
    flags = {}
    for copy in forks.run(map(_Task, names), _kernels, jobs):
        if not copy.messages:
            raise SystemExit(f"{copy.task.program} does not run on the healthy device: {copy.error}")
        flags[copy.task.program] = copy.messages[0]
    return flags


def _flags_of_strangers(count: int, seed: str) -> dict[str, Any]:
    """Return the kernels of so many architectures that the seed draws, and add their programs to the others."""
    flags: dict[str, Any] = {}
    passed: dict[str, str] = {}
    for name, program in strangers.drawn(seed, passed):
        PROGRAMS[name] = program
        (copy,) = forks.run([_Task(name)], _kernels, 1)
        if copy.messages:
            flags[name] = copy.messages[0]
        else:
            passed[name] = (copy.error.strip().splitlines() or [f"status {copy.status}"])[-1]
        if len(flags) == count:
            break
    print(f"architectures of the seed: {', '.join(flags)}; passed over: {len(passed)}")
    for name, why in passed.items():
        print(f"  {name}: {why}")
    return flags


def _outcomes(tasks: Sequence[_Task], jobs: int) -> list[tuple[_Task, Outcome]]:
    found = []
    for copy in forks.run(tasks, _judged, jobs):
        broken = Outcome(copy.task.program, [str(fault) for fault in copy.task.faults], error=copy.error[-300:])
        broken.error = broken.error or f"status {copy.status}"
        found.append((copy.task, copy.messages[0] if copy.messages else broken))
    return found


def _is_accused(outcome: Outcome) -> bool:
    return outcome.answer not in (Answer.RIGHT.name, Answer.ROUNDING.name, Answer.RANDOM.name)


def _say(outcomes: Sequence[Outcome], programs: int) -> None:
    healthy = [one for one in outcomes if not one.faults]
    print(f"healthy: {len(healthy)} runs of {programs} programs, blamed: {sum(map(_is_accused, healthy))}")
    for count, what in ((1, "single faults"), (2, "pairs")):
        planted = [one for one in outcomes if len(one.faults) == count]
        moved = [one for one in planted if one.moved and one.hits]
        right = sum(one.right for one in moved)
        places = len({one.program for one in moved})
        low, high = wilson(right, len(moved)) if moved else (0.0, 0.0)
        score = f"{right} right ({low:.0%} to {high:.0%})"
        print(f"{what}: {len(planted)} planted, {len(moved)} move the end of {places} programs, {score}")
        for one in moved:
            if not one.right:
                print(f"  MISSED {one.program}: {one.faults} -> {one.answer} {one.named[:3]} {one.detail}")
    for one in outcomes:
        if one.error:
            print(f"  ENDED {one.program}: {one.faults}: {one.error}")
    for one in filter(_is_accused, healthy):
        print(f"  ACCUSED {one.program}: {one.answer} {one.named} {one.detail}")
    seconds = [one.seconds for one in outcomes if one.seconds]
    if seconds:
        print(f"seconds of one blame: median {statistics.median(seconds):.1f}, longest {max(seconds):.1f}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.blame.run", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="single faults")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of faults")
    parser.add_argument("--healthy", type=int, default=1, help="runs of each program without a fault")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same faults")
    parser.add_argument("--program", action="append", choices=sorted(PROGRAMS), help="only this program; repeatable")
    parser.add_argument("--strangers", type=int, default=4, help="further architectures, drawn by the seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, default=Path("blame-report"), help="folder for blame.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Hold architectures out, and plant faults in their calls that only a size shows: ``python -m tests.calls.held_out``.

The sample of the area ``calls`` is chosen again without the calls of the architectures that the seed draws. Faults are
drawn among those that a call of theirs meets. A fault is killed if an ordinary case of that sample is wrong with it on
the simulated device; a sample that is right without a fault is shown too. ``--all`` only counts, by sizes alone, the
faults that the calls of every architecture meet and that no call of the shipped sample meets.
"""

from __future__ import annotations

import argparse
import collections
import functools
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.numerics.trees import tensors
from conformance.suites.calls import data
from conformance.suites.calls.judging import run, why_unjudged, wrong
from conformance.suites.calls.kernels import base_name, bound, named
from conformance.suites.calls.spec import Spec, function_of
from tests.defects import bench
from tests.faults import forks
from tests.faults.fault import Hits
from tests.faults.overloads import operator_of
from tests.faults.overriding import overridden
from tests.faults.recording import Recorder

from . import run as generator
from .size_faults import SizeFault, Sizes, behaviour, faults

#: Seconds of a processor for all calls of one operator with one fault.
_LIMIT = 120


@functools.cache
def _sizes(text: str) -> Sizes | None:
    spec = Spec(*generator.json.loads(text))
    function = function_of(spec)
    if function is None or not _is_planted(function):
        return None
    try:
        args, kwargs = generator._on_meta(spec.args), generator._on_meta(spec.kwargs)
        result = next(iter(tensors(function(*args, **kwargs))), None)
    except Exception:  # a call that cannot be made has no size
        return None
    return None if result is None else Sizes.of(operator(spec), bound(function, args, kwargs), result)


def _is_planted(function: Any) -> bool:
    """Return whether a kernel of its own computes a call. Copies are what every call of a test uses."""
    name = base_name(function)
    return not why_unjudged(function) and name not in named("copies") and not function.is_view


def sizes_of(spec: Spec) -> Sizes | None:
    """Return the sizes of a call; None if nothing is planted in its kernel."""
    return _sizes(generator._text(spec))


def operator(spec: Spec) -> str:
    """Return the name of a call's operator, which its in-place form has too."""
    return base_name(function_of(spec)).removesuffix("_")


def met(specs: Iterable[Spec]) -> set[SizeFault]:
    """Return every fault that one of these calls meets."""
    by_operator: dict[str, list[Sizes]] = collections.defaultdict(list)
    for spec in specs:
        if (sizes := sizes_of(spec)) is not None:
            by_operator[operator(spec)].append(sizes)
    return {fault for name, sizes in by_operator.items() for fault in faults(name, sizes)}


def sample_without(held: Sequence[str]) -> list[Spec]:
    """Return the ordinary calls of a sample that is chosen without the calls of some architectures.

    A call that the shipped sample has was seen to kill its mutants; the others are measured here.
    """
    found = {name: data.calls_of(name) for name in data.architectures() if name not in held}
    known = {generator._text(call): group.is_deep for group in data.sample() for call in group.calls}
    kept = []
    for number, one in enumerate(generator.chosen(found)):
        text = generator._text(one.spec)
        if text not in known:
            generator.measure(one, number)
            if one.left_out or one.seconds > generator._ORDINARY:
                continue
        elif known[text]:
            continue
        kept.append(one.spec)
    return kept


@dataclass(frozen=True)
class _Task:
    """Calls of one operator on the device, with a fault in the kernel that computes them, or none."""

    calls: tuple[Spec, ...]
    fault: SizeFault | None = None
    kernel: str = ""


def _kernels(task: _Task, send: forks.Send) -> None:
    """Send the kernels that the calls of an operator reach on the device."""
    device = torch.device(bench.loaded()[0].current_device_name())
    recorder = Recorder(device)
    with overridden(recorder.behaviours, "PrivateUse1"), torch.no_grad():
        recorder.start()
        for spec in task.calls:
            run(spec, device, 0)
    send(sorted(recorder.kernels))


def _judged(task: _Task, send: forks.Send) -> None:
    """Send how often the fault was met, and the first call that is wrong."""
    forks.limit(_LIMIT, patience=8)
    device = torch.device(bench.loaded()[0].current_device_name())
    hits = Hits()
    armed = {task.kernel: behaviour(task.fault, hits)} if task.fault else {}
    text = ""
    with overridden(armed, "PrivateUse1"), torch.no_grad():
        for number, spec in enumerate(task.calls):
            if text := wrong(run(spec, device, number), number):
                text = f"{spec}: {text}"
                break
    send((hits.count, text))


def _own_kernel(name: str, reached: Sequence[str]) -> str:
    """Return the kernel that computes an operator: the one of its name, or of a name that begins so."""
    same = [kernel for kernel in reached if operator_of(kernel) == f"aten::{name}"]
    longer = [kernel for kernel in reached if kernel.startswith(f"aten::{name}_")]
    return (same or longer or [""])[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score, and each fault that survives. Return 1 if one does, or a healthy device is wrong."""
    options = _options(arguments)
    torch.set_num_threads(1)
    if options.all:
        return _count_all()
    bench.loaded()
    forks.prepare()
    held = random.Random(options.seed).sample(sorted(data.architectures()), options.architectures)
    calls = collections.defaultdict(list)
    for spec in sample_without(held):
        if function_of(spec) is not None and _is_planted(function_of(spec)):
            calls[operator(spec)].append(spec)
    every = sorted(met(call for name in held for call in data.calls_of(name)), key=str)
    chosen = random.Random(f"{options.seed}:faults").sample(every, min(options.faults, len(every)))
    print(f"held out: {', '.join(held)}; {len(every)} faults in their calls, {len(chosen)} drawn")
    kernels = _kernels_of({fault.operator for fault in chosen}, calls, options.jobs)
    tasks = [_Task(tuple(calls[fault.operator]), fault, kernels.get(fault.operator, "")) for fault in chosen]
    survivors = [(task.fault, "no call of the sample reaches its kernel") for task in tasks if not task.kernel]
    tasks = [task for task in tasks if task.kernel]
    healthy = [replace(task, fault=None) for task in {task.fault.operator: task for task in tasks if task.fault}.values()]
    accused = 0
    for copy in forks.run([*healthy, *tasks], _judged, options.jobs):
        count, text = copy.messages[0] if copy.messages else (1, "")
        if copy.task.fault is None and (text or copy.error):
            accused += 1
            print(f"  ACCUSED {text or copy.error}")
        elif copy.task.fault is not None and not text and not copy.error:
            survivors.append((copy.task.fault, f"met by {count} calls" if count else "no call of the sample meets it"))
    print(f"{len(chosen)} faults in {len({fault.operator for fault in chosen})} operators, {len(chosen) - len(survivors)} killed")
    for fault, why in survivors:
        print(f"  SURVIVED {fault}: {why}")
    return 1 if survivors or accused else 0


def _kernels_of(operators: Iterable[str], calls: dict[str, list[Spec]], jobs: int) -> dict[str, str]:
    found = {}
    tasks = [_Task((min(calls[name], key=lambda spec: spec.elements),)) for name in sorted(operators) if calls.get(name)]
    for copy in forks.run(tasks, _kernels, jobs):
        if copy.messages:
            name = operator(copy.task.calls[0])
            found[name] = _own_kernel(name, copy.messages[0])
            if not found[name]:
                print(f"  no kernel of {name} among {', '.join(copy.messages[0])}", file=sys.stderr)
    return found


def _count_all() -> int:
    """Print the faults that the calls of each architecture meet, and that no ordinary call of the sample meets."""
    ordinary = met(call for group in data.sample() if not group.is_deep for call in group.calls)
    deep = met(call for group in data.sample() for call in group.calls)
    missing: collections.Counter[SizeFault] = collections.Counter()
    total = 0
    for name in data.architectures():
        own = met(data.calls_of(name))
        total += len(own)
        missing.update(own - ordinary)
    print(f"{total} faults in calls of {len(data.architectures())} architectures; {sum(missing.values())} meet no call")
    for fault, count in sorted(missing.items(), key=lambda item: (-item[1], str(item[0]))):
        print(f"{count:5} {fault}{' (a call of the deep tier does)' if fault in deep else ''}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.calls.held_out", description=__doc__)
    parser.add_argument("--architectures", type=int, default=1, help="how many are held out")
    parser.add_argument("--faults", type=int, default=40, help="faults in their calls")
    parser.add_argument("--seed", default="0", help="any text; the same seed draws the same")
    parser.add_argument("--all", action="store_true", help="count the faults that no call of the sample meets")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

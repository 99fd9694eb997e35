"""Hold architectures out, and plant faults in their calls that only a size shows: ``python -m tests.calls.held_out``.

The sample of the area ``calls`` is left without the calls that only the architectures make which the seed draws.
Faults are drawn among those that a call of theirs meets. A fault is killed if an ordinary case of that sample is wrong
with it on the simulated device; an operator that is wrong without a fault is shown too. ``--all`` only counts, by sizes
alone, the faults that the calls of every architecture meet and that no call of the shipped sample meets.
"""

from __future__ import annotations

import argparse
import collections
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from conformance.suites.calls import data
from conformance.suites.calls.judging import run, wrong
from conformance.suites.calls.spec import Spec, function_of
from tests.defects import bench
from tests.faults import forks
from tests.faults.fault import Hits
from tests.faults.overriding import overridden

from .cover import met, operator, sizes_of, text_of
from .size_faults import KINDS, SizeFault, Sizes, behaviour, faults
from .stretched import form_of

#: Seconds of a processor for all calls of one operator with one fault.
_LIMIT = 120


def sample_without(held: Sequence[str]) -> list[Spec]:
    """Return the ordinary calls of the sample that an architecture makes which is not held out, in any dtype.

    That is less than a sample that is chosen anew without these architectures: nothing takes the place of their calls.
    A stretched call stays if an architecture that is not held out makes a call that is stretched to the like.
    """
    others = [call for name in data.architectures() if name not in held for call in data.calls_of(name)]
    made, forms = set(map(_plain, others)), set(map(form_of, others))
    calls = [call for group in data.sample() if not group.is_deep for call in group.calls]
    return [call for call in calls if _plain(call) in made or (not call.count and form_of(call) in forms)]


def _plain(spec: Spec) -> str:
    """Return a call as a text that is the same in float32 and bfloat16."""
    return text_of(spec).replace('"bfloat16"', '"float32"')


def drawn(specs: Iterable[Spec], count: int, seed: str) -> list[SizeFault]:
    """Draw so many different faults that one of these calls meets: an operator, a kind that it can have, and a limit.

    A limit is any number between the ends of the kind's grid.
    """
    sizes: dict[str, list[Sizes]] = collections.defaultdict(list)
    for spec in specs:
        if (own := sizes_of(spec)) is not None:
            sizes[operator(spec)].append(own)
    kinds = {name: sorted({fault.kind for fault in faults(name, own)}) for name, own in sizes.items()}
    places = [(name, kind) for name in sorted(kinds) for kind in kinds[name]]
    dice, found = random.Random(f"{seed}:faults"), {}
    for _ in range(100 * count):
        name, kind = dice.choice(places)
        low, *_, high = KINDS[kind].limits
        fault = SizeFault(name, kind, round(math.exp(dice.uniform(math.log(low), math.log(high)))))
        if len(found) < count and any(map(fault.is_met, sizes[name])):
            found[str(fault)] = fault
    return list(found.values())


@dataclass(frozen=True)
class _Task:
    """Calls of one operator on the device, with a fault in what computes them, or none."""

    calls: tuple[Spec, ...]
    fault: SizeFault | None = None


def _judged(task: _Task, send: forks.Send) -> None:
    """Send how often the fault was met, and the first call that is wrong."""
    forks.limit(_LIMIT, patience=8)
    device = torch.device(bench.loaded()[0].current_device_name())
    hits, armed = Hits(), {}
    if task.fault is not None:
        armed = {function_of(spec).name(): behaviour(task.fault, hits) for spec in task.calls}
    text = ""
    with overridden(armed, "PrivateUse1"), torch.no_grad():
        for number, spec in enumerate(task.calls):
            if text := wrong(run(spec, device, number), number):
                text = f"{spec}: {text}"
                break
    send((hits.count, text))


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
        if sizes_of(spec) is not None:
            calls[operator(spec)].append(spec)
    chosen = drawn([call for name in held for call in data.calls_of(name)], options.faults, options.seed)
    planted = len({fault.operator for fault in chosen})
    print(f"held out: {', '.join(held)}; {len(chosen)} faults drawn in {planted} operators of their calls")
    survivors, accused = judged(chosen, calls, options.jobs)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} faults killed; operators that are accused: {len(accused)}")
    print("\n".join(["", *survivors, *accused]))
    return 1 if survivors or accused else 0


def judged(chosen: Iterable[SizeFault], calls: Mapping[str, list[Spec]], jobs: int) -> tuple[list[str], list[str]]:
    """Return a line for each fault that survives, and for each operator that is wrong without one."""
    survivors, accused = [], []
    tasks = [_Task(tuple(calls[name])) for name in sorted({fault.operator for fault in chosen} & set(calls))]
    tasks += [_Task(tuple(calls.get(fault.operator, ())), fault) for fault in chosen]
    for copy in forks.run(tasks, _judged, jobs):
        count, text = copy.messages[0] if copy.messages else (0, "")
        ended = "" if copy.messages else copy.error.strip().rpartition("\n")[2] or f"status {copy.status}"
        if copy.task.fault is None:
            accused += [f"ACCUSED {text or ended}"] if text or ended else []
        elif not text:
            why = ended or (f"{count} calls meet it" if count else "no call of the sample meets it")
            survivors.append(f"SURVIVED {copy.task.fault}: {why}")
    return survivors, accused


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

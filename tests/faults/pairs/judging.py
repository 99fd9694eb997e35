"""Shows that faults of time and of state are live, and runs the cases on their subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.defects import bench
from tests.faults import forks
from tests.faults.judging import End, Judged, Outcome, ended, standard_first, until_red
from tests.faults.liveness import Shown

from .pair import MEMBER_CALLS, Pair, hits

#: Seconds of processor time for a direct call, for one case, and for all cases of a fault.
_PROBE, _CASE, _ALL = 20.0, 30.0, 120.0
#: Times these seconds after which a call hangs: a case waits for a device that never answers, without work.
_PATIENCE = 3


def subjects(pair: Pair) -> list[str]:
    """Return the cases on the subject of a fault that run in one process."""
    ordered = dict.fromkeys(case for pattern in pair.part.cases for case in bench.select([pattern]))
    return standard_first(case for case in ordered if bench.planned(case).case.world_size is None)


def judged(pairs: Sequence[Pair], processes: int, say: Callable[[str], None]) -> list[Judged]:
    """Judge every fault in two copies: a direct call in the first, and the cases in the second, if the call shows it.

    A broken direct call leaves wrong counters behind, with which cases would fail before the fault acts.
    """
    order = {pair.fault: place for place, pair in enumerate(pairs)}
    shown = {copy.task.fault: _is_live(copy) for copy in forks.run(pairs, _show, processes)}
    say(f"{sum(shown.values())} of {len(pairs)} are live")
    results = [Judged(pair.fault, End.UNPROVEN, Shown(False), True) for pair in pairs if not shown[pair.fault]]
    for copy in forks.run([pair for pair in pairs if shown[pair.fault]], _judge, processes):
        result = ended(copy.task.fault, Shown(True, "a direct call"), copy)
        results.append(result)
        say(f"{len(results)} of {len(pairs)}  {result.fault}: {result.end.value} {result.by}")
    return sorted(results, key=lambda result: order[result.fault])


def _show(pair: Pair, send: forks.Send) -> None:
    forks.limit(_PROBE, _PATIENCE)
    right, again = _observed(pair), _observed(pair)
    with pair.armed():
        wrong = _observed(pair)
    send(right == again and right != wrong)


def _is_live(copy: forks.Copy[Pair]) -> bool:
    """Return whether a direct call shows the fault. A call that ends the process or never ends has not shown it."""
    return copy.messages == [True] and not copy.error


def _judge(pair: Pair, send: forks.Send) -> None:
    place = bench.Bench()

    def once(case: str) -> Outcome:
        before = MEMBER_CALLS[0]
        with pair.armed():
            verdict = place.run(case)
            acted = hits() - before
        return bench.is_red(verdict), verdict.reason.value, acted

    until_red(subjects(pair), once, send, seconds=(_CASE, _ALL), patience=_PATIENCE)


def _observed(pair: Pair) -> Any:
    torch.manual_seed(7)
    return pair.part.probe()

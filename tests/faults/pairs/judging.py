"""Shows that faults of time and of state are live, and runs the cases on their subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.reports.standard import standard_ids
from tests.defects import bench
from tests.faults import forks
from tests.faults.judging import End, Judged, standard_first
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
        result = _result(copy)
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
    place, started = bench.Bench(), time.process_time()
    for case in subjects(pair):
        if time.process_time() - started > _ALL:
            break
        send(("begin", case))
        forks.limit(_CASE, _PATIENCE)
        before = MEMBER_CALLS[0]
        with pair.armed():
            verdict = place.run(case)
            acted = hits() - before
        forks.limit(0)
        # A case in which the fault did not act is red for another reason.
        red = acted > 0 and bench.is_red(verdict)
        send(("end", case, red, verdict.reason.value, acted))
        if red:
            return


def _observed(pair: Pair) -> Any:
    torch.manual_seed(7)
    return pair.part.probe()


def _result(copy: forks.Copy[Pair]) -> Judged:
    """Return what came of the cases. A case in which the copy ended has killed the fault."""
    pair, begun, red, reason, ran, acted = copy.task, "", "", "", 0, 0
    for kind, *what in copy.messages:
        if kind == "begin":
            begun = what[0]
        else:
            begun, ran, acted = "", ran + 1, acted + what[3]
            red, reason = (what[0], what[2]) if what[1] else ("", "")
    shown = Shown(True, "a direct call")
    if copy.error:
        return Judged(pair.fault, End.TOLERATED, shown, True, "", copy.error[-200:], ran, acted, ran)
    if begun:  # the copy died in it
        red, reason = begun, f"crash or hang ({copy.status})"
    end = End.KILLED if red else End.TOLERATED if acted else End.UNEXERCISED
    # These cases are the same in every profile.
    return Judged(pair.fault, end, shown, True, red, reason, ran, acted, ran, by_standard=red in standard_ids())

"""Runs the cases that reach a fault's target on the broken device, until one of them on the subject fails."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from conformance.reports.standard import standard_ids
from tests.defects import bench

from . import corpus, derivatives, forks
from .fault import Fault, Hits
from .liveness import Shown, armed, show
from .overloads import MODULES, operator_of
from .population import kind_of
from .recording import Map

#: Cases that a fault goes through, and seconds of processor time for all of them and for one.
MOST, _SECONDS, _DEADLINE = 80, 40.0, 20.0
#: Copies for the direct calls of one fault, and the signals that end a copy in one of them.
_DEATHS, _DIED = (
    4,
    tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS)),
)
#: Cases that are not on the subject, tried after all that are.
_VAGUE = 5


class End(Enum):
    """What came of a fault."""

    KILLED = "killed"
    VAGUE = "killed by unrelated cases alone"
    TOLERATED = "seen and tolerated"
    UNEXERCISED = "never exercised"
    UNREACHED = "no case reaches it"
    UNPROVEN = "no direct call shows it"
    IMPOSSIBLE = "no legal call can show it"


@dataclass
class Judged:
    """One fault and what came of it. ``ran`` counts cases, ``hits`` calls that met the fault's condition."""

    fault: Fault
    end: End
    shown: Shown
    reached: bool
    by: str = ""
    reason: str = ""
    ran: int = 0
    hits: int = 0
    cases: int = 0
    #: What came of it where the survivors of the unit tier meet deep cases too; None without the deep tier.
    deep: End | None = None
    #: Whether a case of the profile ``standard`` has killed it, with the inputs that it has in a run of that profile.
    by_standard: bool = False

    def as_plain(self) -> dict[str, Any]:
        """Return this as data for JSON."""
        return {
            "id": self.fault.id,
            "fault": str(self.fault),
            **asdict(self.fault),
            "end": self.end.value,
            "live": self.shown.live,
            "shown_by": self.shown.by,
            "reached": self.reached,
            "by": self.by,
            "by_standard": self.by_standard,
            "reason": self.reason,
            "ran": self.ran,
            "hits": self.hits,
            "cases": self.cases,
            "deep": self.deep.value if self.deep else None,
        }


def candidates(fault: Fault, found: Map) -> tuple[list[str], list[str], bool]:
    """Return the cases on the subject and some others, the most promising first, and if any reach it.

    Cases of the profile ``standard`` come first, so that a score tells what it kills alone. Then cases named after the
    kernel. Of the others, the shortest of each operator come before any second one: a fault in a kernel of many
    operators may show in few of them.
    """
    own, others, reached = [], [], False
    callers = found.callers(fault.target)
    for id, record in found.cases.items():
        if record.red:
            continue
        if fault.family == "F":
            masks = record.nodes.get(fault.target)
            is_own, meets = bool(record.own), bool(masks) and derivatives.needs(fault, masks or ())
            at = masks
        else:
            at = record.reached.get(fault.target)
            kind = kind_of(fault)
            is_own, meets = (
                not callers.isdisjoint(record.own) or is_of_its_module(fault.target, id),
                bool(at) and kind is not None and kind.needs(fault, at or {}),
            )
        if at is None:
            continue
        reached = True
        if meets:
            (own if is_own else others).append((record.seconds, id))
    return _promising(own, fault.target), [id for _, id in sorted(others)][:_VAGUE], reached


def _promising(cases: list[tuple[float, str]], target: str) -> list[str]:
    """Return cases with their seconds in the order in which they are tried."""
    named = [id for _, id in sorted(cases) if is_named_after(target, id)]
    ranks: dict[str, int] = {}
    ranked = []
    for seconds, id in sorted(cases):
        ranks[subject_of(id)] = rank = ranks.get(subject_of(id), 0) + 1
        ranked.append((rank, seconds, id))
    return standard_first(dict.fromkeys([*named, *(id for _, _, id in sorted(ranked))]))


def standard_first(cases: Iterable[str]) -> list[str]:
    """Return the cases of the profile ``standard`` before all others, each part in its order."""
    return sorted(cases, key=lambda id: id not in standard_ids())


def is_named_after(target: str, id: str) -> bool:
    """Return whether a case has the name of a fault's target."""
    return operator_of(target).partition("::")[2] in subject_of(id).split(".")


def is_of_its_module(target: str, id: str) -> bool:
    """Return whether a case is about a module whose own kernel this is: it calls too many others to have one."""
    return id.startswith("modules.") and not MODULES.get(operator_of(target), frozenset()).isdisjoint(
        re.split(r"[].\[-]", id)
    )


def subject_of(id: str) -> str:
    """Return a case's id without its axes."""
    return id.partition("[")[0]


def judged(
    faults: Sequence[Fault],
    accelerator: str,
    found: Map,
    known: corpus.Corpus,
    processes: int,
    say: Callable[[str], None],
) -> list[Judged]:
    """Judge every fault: direct calls in one copy, cases in another."""
    shown = shown_by_calls(faults, accelerator, found, known, processes, say)
    say(f"{sum(item.live for item in shown.values())} of {len(shown)} faults are live")
    results = []
    tasks = [(fault, *candidates(fault, found)) for fault in faults if shown[fault].live]
    empty = [task for task in tasks if not task[1] and not task[2]]
    for fault, _, _, reached in empty:
        results.append(Judged(fault, End.UNEXERCISED if reached else End.UNREACHED, shown[fault], reached))
    for fault in faults:
        if not shown[fault].live:
            end = End.IMPOSSIBLE if shown[fault].impossible else End.UNPROVEN
            results.append(Judged(fault, end, shown[fault], candidates(fault, found)[2], "", shown[fault].impossible))
    for copy in forks.run(
        [task for task in tasks if task[1] or task[2]], lambda task, send: _judge(task, accelerator, send), processes
    ):
        if copy.error:
            say(f"{copy.task[0]} could not be judged and counts as survived: {copy.error}")
        results.append(_result(copy, shown[copy.task[0]]))
    order = {fault: number for number, fault in enumerate(faults)}
    return sorted(results, key=lambda item: order[item.fault])


def shown_by_calls(
    faults: Sequence[Fault],
    accelerator: str,
    found: Map,
    known: corpus.Corpus,
    processes: int,
    say: Callable[[str], None],
) -> dict[Fault, Shown]:
    """Return what direct calls show of each fault; a copy that a call ends or delays has one behind it."""
    shown: dict[Fault, Shown] = {}
    left = dict.fromkeys(faults, 0)
    for _ in range(_DEATHS):
        tasks_left, left = list(left.items()), {}
        for copy in forks.run(
            tasks_left, lambda task, send: show(task[0], found, known, accelerator, send, task[1]), processes
        ):
            fault = copy.task[0]
            if copy.error:
                say(f"no direct call of {fault}: {copy.error.splitlines()[-1]}")
            shown[fault] = copy.messages[-1] if copy.messages else Shown(False)
            if copy.status and copy.status not in _DIED:  # too slow
                shown[fault] = replace(shown[fault], live=False)
            if copy.status and not shown[fault].live:
                left[fault] = shown[fault].calls
    return shown


def _judge(task: tuple[Fault, list[str], list[str], bool], accelerator: str, send: forks.Send) -> None:
    fault, own, others, _ = task
    hits = Hits()
    place = bench.Bench(accelerator=accelerator)
    started = time.process_time()
    with armed(fault, hits, place.device):
        for case, standard in _runs([*own[:MOST], *others]):
            # The cap is by time as well: deep cases are long.
            if time.process_time() - started > _SECONDS:
                break
            send(("begin", case, standard))
            forks.limit(_DEADLINE)
            verdict = place.run(case, standard=standard)
            forks.limit(0)
            red = bench.is_red(verdict)
            send(("end", case, red, verdict.reason.value, hits.count))
            if red:
                return


def _result(copy: forks.Copy[tuple[Fault, list[str], list[str], bool]], shown: Shown) -> Judged:
    fault, own, _, reached = copy.task
    red, reason, ran, hits, begun, standard = "", "", 0, 0, "", False
    for kind, *what in copy.messages:
        if kind == "begin":
            begun, standard = what
            continue
        begun, ran, hits = "", ran + 1, what[3]
        if what[1]:
            red, reason = what[0], what[2]
    if begun:  # the copy died in it
        red, reason, ran = begun, f"crash or hang ({copy.status})", ran + 1
        hits = max(hits, 1)
    end = End.UNEXERCISED if not hits else End.TOLERATED
    if red:
        end = End.KILLED if red in own else End.VAGUE
    killed = standard and end is End.KILLED
    return Judged(fault, end, shown, reached, red, reason, ran, hits, len(own), by_standard=killed)


# --- the deep tier ----------------------------------------------------------------------------------------------------

#: Seconds of processor time for all deep cases of a fault, and for one.
_DEEP_SECONDS, _DEEP_DEADLINE = 240.0, 120.0


def judged_wide(results: Sequence[Judged], accelerator: str, found: Map, processes: int) -> list[Judged]:
    """Return the results after survivors met the unit cases that a narrow map leaves out, such as those in float64.

    Such a case is on the subject where one of the map's cases of the same operator is.
    """
    left_out = [id for id in bench.plan("operators") if id not in found.cases]
    killers = _killers(results, accelerator, found, processes, left_out)
    changed = []
    for item in results:
        by, standard = killers.get(item.fault, ("", False))
        changed.append(replace(item, end=End.KILLED, by=by, by_standard=standard) if by else item)
    return changed


def judged_deep(results: Sequence[Judged], accelerator: str, found: Map, processes: int) -> list[Judged]:
    """Return the results with what comes of them in the deep tier: survivors go through its cases too.

    A deep case is on the subject where a unit case of the same operator is.
    """
    killers = _killers(results, accelerator, found, processes, list(bench.deep_plan()))
    return [replace(item, deep=End.KILLED if item.fault in killers else item.end) for item in results]


def _killers(
    results: Sequence[Judged], accelerator: str, found: Map, processes: int, cases: Sequence[str]
) -> dict[Fault, tuple[str, bool]]:
    """Return the case that kills each survivor, and whether it does in a run of the profile ``standard``.

    It counts only if it passes on the healthy device.
    """
    killers = {}
    tasks = [(item.fault, cases_of_callers(item.fault, found, cases)) for item in results if _survived(item)]
    for copy in forks.run(tasks, lambda task, send: _judge_more(task, accelerator, send), processes):
        # A copy that has begun a case and says no more has died in it.
        if copy.messages and copy.messages[-1][0] in ("begin", "red"):
            killers[copy.task[0]] = copy.messages[-1][1:]
    return killers


def _survived(item: Judged) -> bool:
    return item.shown.live and item.end is not End.KILLED


def cases_of_callers(fault: Fault, found: Map, cases: Sequence[str]) -> list[str]:
    """Return those cases whose operators call the fault's target themselves, those named after it first."""
    callers, subjects = found.callers(fault.target), set()
    for id, record in found.cases.items():
        met = fault.target in (record.nodes if fault.family == "F" else record.reached)
        if met and (record.own if fault.family == "F" else not callers.isdisjoint(record.own)):
            subjects.add(subject_of(id))
    chosen = [id for id in cases if subject_of(id) in subjects]
    return standard_first(sorted(chosen, key=lambda id: not is_named_after(fault.target, id)))


def _judge_more(task: tuple[Fault, list[str]], accelerator: str, send: forks.Send) -> None:
    fault, cases = task
    place = bench.Bench(accelerator=accelerator)
    started = time.process_time()
    for case, standard in _runs(cases):
        if time.process_time() - started > _DEEP_SECONDS:
            return
        forks.limit(_DEEP_DEADLINE)
        send(("begin", case, standard))
        with armed(fault, Hits(), place.device):
            red = bench.is_red(place.run(case, standard=standard))
        send(("end", case, standard))
        forks.limit(_DEEP_DEADLINE)
        if red and not bench.is_red(place.run(case, standard=standard)):
            send(("red", case, standard))
            return
        forks.limit(0)


def _runs(cases: Sequence[str]) -> list[tuple[str, bool]]:
    """Return what is run: the cases of the profile ``standard`` in a run of it, and then all with all their inputs."""
    return [*((case, True) for case in cases if case in standard_ids()), *((case, False) for case in cases)]


def in_order(results: Sequence[Judged]) -> Iterator[Judged]:
    """Yield survivors first by family and kind."""
    yield from sorted(results, key=lambda item: str(item.fault))


#: Whether a case is red, its reason, and how often the fault acted in it.
Outcome = tuple[bool, str, int]


def until_red(
    cases: Iterable[str],
    once: Callable[[str], Outcome],
    send: forks.Send,
    *,
    seconds: tuple[float, float],
    patience: float = 10,
) -> None:
    """Run cases and send their outcomes until one is red in which the fault acted. Another is red for another reason.

    ``seconds`` are those of processor time for one case and for all.
    """
    started = time.process_time()
    for case in cases:
        if time.process_time() - started > seconds[1]:
            break
        send(("begin", case))
        forks.limit(seconds[0], patience)
        red, reason, acted = once(case)
        forks.limit(0)
        red = red and acted > 0
        send(("end", case, red, reason, acted))
        if red:
            return


def ended(fault: Fault, shown: Shown, copy: forks.Copy[Any]) -> Judged:
    """Return what came of a live fault in a copy that ran ``until_red``. A case in which it ended has killed it."""
    begun, by, reason, ran, acted = "", "", "", 0, 0
    for kind, case, *what in copy.messages:
        if kind == "begin":
            begun = case
        else:
            begun, ran, acted = "", ran + 1, acted + what[2]
            by, reason = (case, what[1]) if what[0] else ("", "")
    if copy.error:
        return Judged(fault, End.TOLERATED, shown, True, "", copy.error[-200:], ran, acted, ran)
    if begun:  # the copy died in it
        by, reason = begun, f"crash or hang ({copy.status})"
    end = End.KILLED if by else End.TOLERATED if acted else End.UNEXERCISED
    return Judged(fault, end, shown, True, by, reason, ran, acted, ran, by_standard=by in standard_ids())

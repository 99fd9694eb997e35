"""Draws faults of compiled code from programs, shows that they are live, and runs the cases that meet them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import COMPILE
from conformance.reports.verdict import Reason, Verdict
from conformance.suites.operators.calls import database
from tests.defects import bench
from tests.faults import forks, liveness
from tests.faults.fault import Fault
from tests.faults.judging import End, Judged, Outcome, ended, standard_first, until_red
from tests.faults.liveness import Shown

from . import programs
from .backend import interpreted
from .nodes import Broken, Seen, seen

FAMILY: Final = "M"
#: Programs of which one fault is drawn at most; seconds for a program, for one case and for all cases of a fault.
_ATTEMPTS: Final = 12
_PROBE, _CASE, _ALL = 60.0, 60.0, 240.0


@dataclass(frozen=True)
class _Drawn:
    """A fault, the name of the program it was drawn from, and whether the program shows it."""

    fault: Fault
    program: str
    live: bool


def drawn_and_judged(draws: int, seed: str, processes: int, say: Callable[[str], None]) -> list[Judged]:
    """Draw faults and judge them. A seed draws the same ones every time."""
    known = list(_drawn(draws, seed, processes))
    say(f"{sum(each.live for each in known)} of {len(known)} faults of compiled code are live")
    met = _recorded(processes)
    say(f"{len(met)} cases compile")
    results = [_unproven(each) for each in known if not each.live]
    tasks = [(each, _cases(each.fault, met)) for each in known if each.live]
    for copy in forks.run(tasks, _judge, processes):
        results.append(_result(copy))
        say(f"{len(results)} of {len(known)}  {results[-1].fault}: {results[-1].end.value} {results[-1].by}")
    order = {each.fault: place for place, each in enumerate(known)}
    return sorted(results, key=lambda result: order[result.fault])


def _drawn(draws: int, seed: str, processes: int) -> Iterator[_Drawn]:
    """Yield so many different faults, each with its program."""
    names = sorted(database.database())
    known: dict[Fault, _Drawn] = {}
    for start in range(0, 4 * draws, draws):
        tasks = [(f"{seed}:{FAMILY}:{number}", names) for number in range(start, start + draws)]
        found = {copy.task[0]: copy.messages for copy in forks.run(tasks, _draw, processes)}
        for task, _ in tasks:
            if found[task] and len(known) < draws:
                known.setdefault(found[task][-1].fault, found[task][-1])
        if len(known) >= draws:
            break
    yield from known.values()


def _draw(task: tuple[str, Sequence[str]], send: forks.Send) -> None:
    """Send a fault that is drawn from a node of a drawn program, first as one that nothing shows."""
    (seed, names), device = task, bench.Bench().device
    chance = random.Random(seed)
    for _ in range(_ATTEMPTS):
        program = programs.draw(chance, names)
        nodes: list[Seen] = []
        if program is None or (right := _results(program, device, partial(_note, nodes))) is None or not nodes:
            continue
        if not liveness.same(right, _results(program, device, lambda node, backward: None)):
            continue
        for _ in range(_ATTEMPTS):
            fault = _of(nodes, chance)
            send(_Drawn(fault, program.name, False))
            wrong = _results(program, device, partial(breaking, fault, Broken((fault.kind, fault.detail))))
            if wrong is None or not liveness.same(right, wrong):
                send(_Drawn(fault, program.name, True))
                return
        return


def _note(nodes: list[Seen], node: Any, is_backward: bool) -> None:
    if (found := seen(node, is_backward=is_backward)) is not None:
        nodes.append(found)


def _of(nodes: Sequence[Seen], chance: random.Random) -> Fault:
    """Draw a function, one of its nodes, an effect and a fact: each kind of them as often as another."""
    target = chance.choice(sorted({node.target for node in nodes}))
    node = chance.choice([each for each in nodes if each.target == target])
    kind = chance.choice(sorted({kind for kind, _ in node.effects}))
    detail = chance.choice(sorted(detail for each, detail in node.effects if each == kind))
    place = ""
    if chance.random() < 3 / 4:
        groups = sorted({_group(fact) for fact in node.facts})
        group = chance.choice(groups)
        place = chance.choice(sorted(fact for fact in node.facts if _group(fact) == group))
    return Fault(FAMILY, kind, target, place, detail)


def _group(fact: str) -> str:
    """Return the words with which facts of one kind begin."""
    words = fact.split()
    return " ".join((words[0], words[2])) if words[0] == "operand" else words[0]


def breaking(fault: Fault, broken: Broken, node: Any, is_backward: bool) -> Broken | None:
    found = seen(node, is_backward=is_backward)
    return broken if found is not None and meets(fault, found) else None


def meets(fault: Fault, node: Seen) -> bool:
    return (
        node.target == fault.target
        and (not fault.place or fault.place in node.facts)
        and (fault.kind, fault.detail) in node.effects
    )


@contextmanager
def watching(look: Callable[[Any, bool], Any]) -> Iterator[None]:
    def graph(module: Any, is_backward: bool) -> dict[Any, Any]:
        runs = ((node, look(node, is_backward)) for node in module.graph.nodes)
        return {node: run for node, run in runs if run is not None}

    with interpreted(graph):
        yield


def _results(program: programs.Program, device: torch.device, look: Callable[[Any, bool], Any]) -> Any:
    """Return the results of a program, or None if PyTorch does not trace it."""
    forks.limit(_PROBE)
    try:
        with watching(look):
            return program.results(
                device, lambda function: torch.compile(function, backend="inductor", fullgraph=True, dynamic=False)
            )
    except Exception:
        return None
    finally:
        forks.limit(0)


def _recorded(processes: int) -> dict[str, list[Seen]]:
    """Return the cases that compile in one process, and the nodes of their graphs."""
    chosen = [
        id
        for id in bench.select(["compile.*", "workloads.*"])
        if not bench.on_ranks(id) and COMPILE.cell in bench.planned(id).case.requires
    ]
    copies = list(forks.run(chosen, _record, processes))
    wrong = [f"{copy.task}: {copy.error or copy.messages}" for copy in copies if not copy.messages or copy.messages[-1]]
    if wrong:
        raise RuntimeError("these cases fail without a fault: " + "; ".join(wrong))
    found = {copy.task: list(copy.messages[:-1]) for copy in copies}
    return {case: [node for nodes in found[case] for node in nodes] for case in chosen}


def _record(case: str, send: forks.Send) -> None:
    nodes: list[Seen] = []
    with watching(partial(_note, nodes)):
        verdict = bench.Bench().run(case)
    send(list(dict.fromkeys(nodes)))
    send(verdict.message if is_wrong(verdict) else "")


def is_wrong(verdict: Verdict) -> bool:
    """Return whether a case fails, and not because graphs are run node by node."""
    return bench.is_red(verdict) and verdict.reason is not Reason.STUB


def _cases(fault: Fault, met: dict[str, list[Seen]]) -> list[str]:
    """Return the cases with a node that meets a fault, those of the profile ``standard`` first."""
    return standard_first(case for case, nodes in met.items() if any(meets(fault, node) for node in nodes))


def _judge(task: tuple[_Drawn, Sequence[str]], send: forks.Send) -> None:
    (known, cases), place = task, bench.Bench()

    def once(case: str) -> Outcome:
        broken = Broken((known.fault.kind, known.fault.detail))
        with watching(partial(breaking, known.fault, broken)):
            verdict = place.run(case)
        return is_wrong(verdict), verdict.reason.value, broken.count

    until_red(cases, once, send, seconds=(_CASE, _ALL))


def _result(copy: forks.Copy[tuple[_Drawn, Sequence[str]]]) -> Judged:
    known, cases = copy.task
    found = ended(known.fault, Shown(True, known.program), copy)
    return found if cases else replace(found, end=End.UNREACHED, reached=False)


def _unproven(known: _Drawn) -> Judged:
    return Judged(known.fault, End.UNPROVEN, Shown(False, known.program), True)

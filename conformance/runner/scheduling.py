"""Scheduling: which worker gets which case. What costs a worker memory and seconds to begin with, few workers begin.

A worker that compiles loads PyTorch's compiler, and one that trains models loads the model library and keeps the host's
runs. If each worker did both, each would need the memory and the seconds of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadScheduling

from conformance.plan.costs import is_compiled, measured


class Due(NamedTuple):
    """Case that is to run: its group, "" for none, and the seconds that it is expected to take."""

    group: str
    seconds: float


def group_of(requires: Iterable[str], world_size: int | None, tier: str) -> str:
    """Return the group of a case by what its first case loads: a compiler, ranks, models, or nothing."""
    if is_compiled(requires):
        return "compiler"
    if world_size:
        return "ranks"
    return "models" if tier == "workload" else ""


def due_of(nodeids: Iterable[str], cases: Iterable[Mapping[str, Any]]) -> list[Due]:
    """Return what is due by node id, with the cases of a manifest; a plain test has no group and no seconds."""
    costs, known = measured(), {case["nodeid"]: case for case in cases}

    def due(case: Mapping[str, Any]) -> Due:
        group = group_of(case.get("requires", ()), case.get("world_size"), case.get("tier", ""))
        return Due(group, costs.seconds(case["id"]))

    return [due(known[nodeid]) if nodeid in known else Due("", 0.0) for nodeid in nodeids]


class Groups:
    """Groups that workers have begun. A group has as many workers as its share of the time is of all workers'."""

    def __init__(self, due: Sequence[Due], workers: int) -> None:
        self._groups = [case.group for case in due]
        seconds: dict[str, float] = defaultdict(float)
        for case in due:
            seconds[case.group] += case.seconds
        total = sum(seconds.values()) or 1.0
        self._most = {group: math.ceil(workers * taken / total) for group, taken in seconds.items()}
        self._begun: dict[str, set[Hashable]] = defaultdict(set)

    def choose(self, waiting: Sequence[int], worker: Hashable, living: Collection[Hashable]) -> int:
        """Return the place in ``waiting`` of the next case for a worker: the first that it may begin, or the first.

        ``waiting`` has the numbers of the cases in their order; it is not empty.
        """
        allowed = {group for group in self._most if self._may(group, worker, living)}
        place = next((place for place, number in enumerate(waiting) if self._groups[number] in allowed), 0)
        if group := self._groups[waiting[place]]:
            self._begun[group].add(worker)
        return place

    def _may(self, group: str, worker: Hashable, living: Collection[Hashable]) -> bool:
        if not group or worker in self._begun[group]:
            return True
        return sum(each in living for each in self._begun[group]) < self._most[group]


class GroupScheduling(LoadScheduling):  # type: ignore[misc]
    """xdist's scheduling by load, with a choice of a worker's cases. ``cases`` returns those of the manifest."""

    def __init__(self, config: pytest.Config, log: Any, cases: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        super().__init__(config, log)
        self._cases, self._groups = cases, Groups((), 0)

    def schedule(self) -> None:
        """Distribute the first cases. The plan is known now."""
        if self.collection is None:
            nodeids = next(iter(self.node2collection.values()))
            self._groups = Groups(due_of(nodeids, self._cases()), len(self.nodes))
        super().schedule()

    def _send_tests(self, node: Any, num: int) -> None:
        chosen = [
            self.pending.pop(self._groups.choose(self.pending, node, self.nodes))
            for _ in range(min(num, len(self.pending)))
        ]
        if chosen:
            self.node2pending[node].extend(chosen)
            node.send_runtest_some(chosen)

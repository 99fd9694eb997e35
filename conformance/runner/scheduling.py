"""Scheduling: which worker gets which case. What costs a worker memory and seconds to begin with, few workers begin.

A worker that compiles loads PyTorch's compiler, and one that trains models loads the model library and keeps the host's
runs. If each worker did both, each would need the memory and the seconds of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadScheduling

from conformance.plan.costs import is_compiled


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
    """xdist's scheduling by load, with a choice of the cases that a worker gets. ``due`` tells them by node id."""

    def __init__(self, config: pytest.Config, log: Any, due: Callable[[Sequence[str]], Sequence[Due]]) -> None:
        super().__init__(config, log)
        self._told, self._groups = due, Groups((), 0)

    def schedule(self) -> None:
        """Distribute the first cases. The plan is known now."""
        if self.collection is None:
            self._groups = Groups(self._told(next(iter(self.node2collection.values()))), len(self.nodes))
        super().schedule()

    def _send_tests(self, node: Any, num: int) -> None:
        chosen = [
            self.pending.pop(self._groups.choose(self.pending, node, self.nodes))
            for _ in range(min(num, len(self.pending)))
        ]
        if chosen:
            self.node2pending[node].extend(chosen)
            node.send_runtest_some(chosen)

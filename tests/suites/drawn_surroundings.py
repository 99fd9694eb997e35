"""Devices whose bits depend on a surrounding, drawn by a seed: ``python -m tests.suites.drawn_surroundings --seed S``.

A device computes in float64 and rounds once, so no surrounding reaches its bits; but one operator has another last bit
from a hidden size of one kind of surrounding on. It is named if that operator alone changes in that kind, at the next
size that the kind tests, and if nothing changes in a kind that has nothing to do with it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from conformance.suites.invariance import compiled, ranks, surroundings
from tests.suites.test_invariance import DRAWN, HOST, Invariant
from tests.suites.test_invariance_together import EXACT, Threads

#: Kinds that all depend on the number of rows: a device with such a habit shows in each of them.
BY_ROWS = frozenset({"batch", "chunk", "padding"})
#: Kinds with their largest hidden size.
KINDS = {"batch": 1025, "chunk": 256, "padding": 1025, "stride": 129, "run": 3, "stream": 1, "graph": 1, "rank": 4,
         "compile": 3}  # fmt: skip
#: Names of the operators of other kinds than DRAWN's.
_OF_RANKS = tuple(EXACT)


@dataclass(frozen=True)
class Habit:
    """Habit of a device: an operator has other bits from a size of a surrounding on."""

    number: int
    operator: str
    kind: str
    size: int

    def __str__(self) -> str:
        return f"{self.number:2} {self.operator}: {self.kind} from {self.size} on"


def draw(seed: str, count: int) -> list[Habit]:
    """Return habits of every kind in turn."""
    found = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind = sorted(KINDS)[number % len(KINDS)]
        operator = rng.choice({"rank": _OF_RANKS, "compile": compiled.NAMES}.get(kind, sorted(DRAWN)))
        least = 2 if kind in ("batch", "run", "rank") else 1
        # A habit beyond the largest size that a kind tests cannot be named.
        found.append(Habit(number, operator, kind, rng.randint(least, min(KINDS[kind], tested_sizes(kind)[-1]))))
    return found


class Device(Invariant):
    """Device with a habit."""

    def __init__(self, habit: Habit | None = None) -> None:
        super().__init__(DRAWN[habit.operator] if habit else "")
        self._habit = habit
        self.beside = False

    def _depends(self, x: torch.Tensor) -> bool:
        self.calls += torch.is_grad_enabled()  # a backward pass may call the same function
        habit = self._habit
        assert habit is not None
        rows = x.shape[0]
        return {
            "batch": rows >= habit.size,
            "padding": rows >= surroundings.ROWS + habit.size,
            "chunk": habit.size <= rows < 257,
            "stride": x.dim() > 1 and x.stride(0) - x[0].numel() >= habit.size,
            "run": self.calls >= habit.size,
            "stream": self.beside,
            "graph": self.beside,
        }[habit.kind]


class Accelerator:
    """Streams and graphs that run at once, and tell the device that they do."""

    def __init__(self, device: Device, kind: str) -> None:
        self._device, self._kind = device, kind

    def Stream(self) -> object:
        return object()

    def create_graph(self) -> object:
        return object()

    def synchronize(self) -> None:
        pass

    @contextlib.contextmanager
    def _beside(self, kind: str) -> Iterator[None]:
        self._device.beside = self._kind == kind
        yield
        self._device.beside = False

    def stream(self, stream: object) -> Any:
        return self._beside("stream")

    def capture_to_graph(self, graph: object) -> Any:
        return self._beside("graph")

    def replay_graph(self, graph: object) -> None:
        pass


@functools.cache
def tested_sizes(kind: str) -> list[int]:
    """Return the sizes that a kind goes through."""
    if kind == "rank":
        return [2, 4]
    if kind == "compile":
        return list(compiled.SIZES)
    subject = surroundings.Subject(surroundings.operators()["tanh"], HOST, torch.float32, Accelerator(Device(), ""))
    return [size for size, _ in surroundings.KINDS[kind](subject)]


def named_by(habit: Habit) -> dict[str, dict[str, int]]:
    """Return the operators that change, with their sizes, by kind: that of the habit, and some others."""
    if habit.kind == "rank":
        return {"rank": _ranks(habit)}
    if habit.kind == "compile":
        compiler = _compiler(habit)
        return {"compile": _sizes(compiled.changes(compiler, HOST, torch.float32)[0])}
    rng = random.Random(habit.number)
    others = [name for name in sorted(DRAWN) if DRAWN[name] != DRAWN[habit.operator] and name not in _shared(habit)]
    chosen = [habit.operator, *rng.sample(others, 2)]
    known = surroundings.operators()
    kinds = [habit.kind, *(kind for kind in ("stride", "run", "graph") if kind != habit.kind)]
    found = {}
    for kind in kinds:
        device = Device(habit)
        few = {name: known[name] for name in chosen}
        with mock.patch.object(surroundings, "operators_in", return_value=few), device:
            found[kind] = _sizes(surroundings.changes(kind, HOST, torch.float32, Accelerator(device, habit.kind)))
    return found


def _shared(habit: Habit) -> tuple[str, ...]:
    """Return operators that call the target of a habit too."""
    return ("mv", "linear") if habit.operator in ("mv", "linear") else ()


def _compiler(habit: Habit) -> Callable[..., Any]:
    """Return a compiler that changes the last bit of an operator with enough others beside it."""
    # A compiler sees no names: it knows the graphs by the order in which it gets them.
    order = [(name,) for name in compiled.NAMES] + [graph for size in compiled.SIZES for graph in compiled.graphs(size)]
    left = iter(order)

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        names = next(left)

        def run(x: torch.Tensor) -> Any:
            results, consumed = function(x)
            if len(names) > habit.size and habit.operator in names:
                results[names.index(habit.operator)].view(torch.int32).flatten()[-1] ^= 1
            return results, consumed

        return run

    return compiler


def _sizes(changes: list[surroundings.Change]) -> dict[str, int]:
    return {change.operator: change.size for change in changes}


def _ranks(habit: Habit) -> dict[str, int]:
    """Return the operators that change on four threads of which groups of a size have other sums."""
    running: dict[int, str] = {}

    def spoil(result: torch.Tensor, size: int, number: int) -> None:
        if size >= habit.size and running[threading.get_ident()] == habit.operator:
            result.view(torch.int32).flatten()[0] ^= 1

    parallel = {name: _noting(name, ranks.PARALLEL[name], running) for name in EXACT}
    with _whole_numbers(parallel):
        shared = {(size, start): (threading.Barrier(size), {}) for size in (2, 4) for start in range(0, 4, size)}
        results: dict[int, torch.Tensor] = {}

        def run(rank: int) -> None:
            groups = [Threads(shared[size, rank // size * size], size, rank % size, spoil) for size in (2, 4)]
            results[rank], _ = ranks.compare(groups, HOST, torch.float32)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return _sizes(ranks.changes_of(torch.stack(list(results.values())).sum(0), [2, 4]))


def _noting(name: str, function: Callable[..., torch.Tensor], running: dict[int, str]) -> Callable[..., torch.Tensor]:
    def noted(*arguments: Any) -> torch.Tensor:
        running[threading.get_ident()] = name
        return function(*arguments)

    return noted


@contextlib.contextmanager
def _whole_numbers(parallel: dict[str, Any]) -> Iterator[None]:
    """Give every operator whole numbers, so that a sum of parts has the bits of the whole."""

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).float()

    with (
        mock.patch.object(ranks.Weights, "__call__", lambda self, *shape: drawn(shape)),
        mock.patch.object(surroundings.Subject, "rows", lambda self, count: drawn((count, ranks.WIDTH))),
        mock.patch.object(ranks, "PARALLEL", parallel),
    ):
        yield


def expected(habit: Habit) -> dict[str, dict[str, int]]:
    """Return what has to be named in the kind of the habit, and in kinds that have nothing to do with it."""
    size = next(size for size in tested_sizes(habit.kind) if size >= habit.size)
    return {habit.kind: {habit.operator: size}}


def is_named(habit: Habit, found: dict[str, dict[str, int]]) -> bool:
    """Tell whether the habit is named exactly."""
    own = found[habit.kind] == expected(habit)[habit.kind]
    # A device that changes from a number of calls on does so in every kind.
    return own and (habit.kind == "run" or not any(found[kind] for kind in found if kind != habit.kind))


def main(words: list[str] | None = None) -> int:
    """Print each habit and what was named, and the score. The exit status is 1 if one is not named exactly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", required=True, help="any text, chosen after the code is done")
    parser.add_argument("--count", type=int, default=30)
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    named = 0
    for habit in draw(chosen.seed, chosen.count):
        found = named_by(habit)
        good = is_named(habit, found)
        named += good
        print(f"{'named' if good else 'MISSED':7} {habit}: {found[habit.kind]}" + ("" if good else f" {found}"))
    print(f"{named} of {chosen.count} named with operator, kind and size")
    return int(named < chosen.count)


if __name__ == "__main__":
    sys.exit(main())

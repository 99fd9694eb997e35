"""Graphs of ``torch.accelerator``: work that is held back until a replay."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import TORCH_ACCELERATOR_GRAPH
from conformance.judging.finding import stub
from conformance.plan.case import case
from conformance.suites.shared_bodies import warm_up

from .members import indices, member, selected


def _capture(accelerator, device, work, **options):
    """Return a graph of the work, captured on a new stream."""
    warm_up(accelerator, work, times=1)
    graph = member("Graph")(**options)
    with torch.Stream(device=device), graph:
        work()
    accelerator.synchronize()
    return graph


def _replayed(accelerator, graph, tensor):
    graph.replay()
    accelerator.synchronize()
    return tensor.cpu().tolist()


@case("torch_accelerator.Graph.replay", requires=[TORCH_ACCELERATOR_GRAPH])
def test_replay(accelerator, device):
    """Graph holds work back until replay(), and each replay reads the inputs' current values on the graph's device."""
    for index in indices(accelerator):
        there = torch.device(device.type, index)
        with selected(accelerator, device, index):
            source, total = torch.arange(1.0, 4.0, device=there), torch.zeros(3, device=there)
            warm_up(accelerator, lambda: total.add_(source * 2), times=1)  # noqa: B023 - called in this round
            total.zero_()
            graph = member("Graph")()
            with torch.Stream(device=there), graph:
                total.add_(source * 2)
            accelerator.synchronize()
            held_back = total.cpu().tolist()
            first = _replayed(accelerator, graph, total)
            source.add_(1)
            second = _replayed(accelerator, graph, total)

        if first == held_back and held_back == [2.0, 4.0, 6.0]:
            stub("Graph has no effect: the work ran during the capture and replay() did nothing")
        assert held_back == [0.0] * 3, f"the capture on device {index} ran the work: {held_back}"
        if first == held_back:
            stub(f"replay() has no effect: {first} before and after it")
        assert first == [2.0, 4.0, 6.0], f"the first replay on device {index} gives {first}, not [2, 4, 6]"
        assert second == [6.0, 10.0, 14.0], f"the second replay, with other inputs, gives {second}, not [6, 10, 14]"


@case("torch_accelerator.Graph.reset", requires=[TORCH_ACCELERATOR_GRAPH])
def test_reset(accelerator, device):
    """After reset() a graph captures other work, and replays that alone."""
    left, right = torch.zeros(3, device=device), torch.zeros(3, device=device)
    graph = _capture(accelerator, device, lambda: left.add_(1))
    left.zero_()

    graph.reset()
    warm_up(accelerator, lambda: right.add_(5), times=1)
    right.zero_()
    with torch.Stream(device=device), graph:
        right.add_(5)
    accelerator.synchronize()

    found = _replayed(accelerator, graph, right)
    assert found == [5.0] * 3, f"the second capture gives {found}, not fives"
    assert left.cpu().tolist() == [0.0] * 3, f"reset() keeps the work of the first capture: {left.cpu().tolist()}"


@case("torch_accelerator.Graph.pool", requires=[TORCH_ACCELERATOR_GRAPH])
def test_pool(accelerator, device):
    """pool() names the graph's memory, a second graph can share it, and both replay right."""
    left, right = torch.zeros(3, device=device), torch.zeros(3, device=device)
    first = _capture(accelerator, device, lambda: left.add_(torch.ones(3, device=device) * 2))
    pool = first.pool()
    other = _capture(accelerator, device, lambda: right.add_(3))

    second = _capture(accelerator, device, lambda: right.add_(torch.ones(3, device=device) * 3), pool=pool)
    left.zero_(), right.zero_()

    assert isinstance(pool, tuple) and len(pool) == 2, f"pool() returned {pool!r}; it must return two numbers"
    assert second.pool() == pool, f"a graph that was given pool {pool} says that its pool is {second.pool()}"
    assert other.pool() != pool, f"two graphs of their own say that their pool is {pool}"
    assert _replayed(accelerator, first, left) == [2.0] * 3, f"the first graph gives {left.cpu().tolist()}, not twos"
    found = _replayed(accelerator, second, right)
    assert found == [3.0] * 3, f"the second graph gives {found}, not threes"
    first.reset(), second.reset(), other.reset()


@case("torch_accelerator.Graph.keep", requires=[TORCH_ACCELERATOR_GRAPH])
def test_keep(accelerator, device):
    """A graph with keep_graph=True replays after instantiate()."""
    total = torch.zeros(3, device=device)
    graph = _capture(accelerator, device, lambda: total.add_(4), keep_graph=True)
    total.zero_()

    graph.instantiate()

    assert total.cpu().tolist() == [0.0] * 3, f"instantiate() ran the work: {total.cpu().tolist()}"
    assert _replayed(accelerator, graph, total) == [4.0] * 3, f"replay gives {total.cpu().tolist()}, not fours"


@case("torch_accelerator.Graph.raises", requires=[TORCH_ACCELERATOR_GRAPH])
def test_raises(accelerator, device):
    """The context lets an exception through and ends the capture: later work runs at once."""
    total, caught = torch.zeros(3, device=device), None
    accelerator.synchronize()
    try:
        with torch.Stream(device=device), member("Graph")():
            total.add_(1)
            raise KeyError("on purpose")
    except KeyError as error:
        caught = error

    assert caught is not None, "the context of Graph swallowed an exception"
    assert (total + 3).cpu().tolist() == [3.0] * 3, (
        f"work after the exception gives {(total + 3).cpu().tolist()}, not threes"
    )

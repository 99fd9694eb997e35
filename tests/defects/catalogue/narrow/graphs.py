"""Graphs that replay most things rightly: each defect here shows in one use of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, lacks
from tests.defects.faults import Around, Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, on_device, spoiled

from .streams import Context, both

GRAPH = ("accelerator.graph.*", "capabilities.graph.*")
REPLAYS = "DeepSpeed #8208"
GRAPHS = "DeepSpeed interface: graphs"
NO = "the declaration says so"
NO_GRAPHS = lacks(can.GRAPH_CAPTURE, NO) | lacks(can.GRAPH_POOL, NO)


def graph(name: str, precedent: str, caught_by: str, *touch: str, claims: Capabilities = frozenset(),
          **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, "graphs", precedent, Where.GRAPH, caught_by, **fault), (*GRAPH, *touch), claims=claims)


def _capturing() -> bool:
    return bool(torch.sim.is_current_stream_capturing())  # type: ignore[attr-defined]


def replaying(around: Callable[..., None]) -> Context:
    """``around(replay, graph)`` goes in place of a replay; ``replay(graph)`` is the true one."""

    def replay_graph(old: Any) -> Any:
        def replay_graph(self: Any, graph: Any) -> None:
            around(lambda which: old(self, which), graph)

        return replay_graph

    return accelerator(replay_graph=replay_graph)


def fresh(make: Callable[[], Context]) -> Context:
    """A context with a memory of its own each time it is entered."""
    return lambda: make()()


# --- what is created and captured ----------------------------------------------------------------------------------


def _hidden_graphs() -> Context:
    """create_graph() answers None, and what its context runs is replayed all the same."""
    last: list[Any] = []

    def capture_to_graph(old: Any) -> Any:
        @contextmanager
        def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
            last[:] = [torch.sim.SIMGraph()]  # type: ignore[attr-defined]
            try:
                with old(self, last[0], pool, stream):
                    yield
            finally:
                last[0].replay()

        return capture_to_graph

    def replay(replay: Any, graph: Any) -> None:
        if last:
            replay(last[0])

    return both(
        accelerator(create_graph=constant(None), capture_to_graph=capture_to_graph, _has_graphs=_always),
        replaying(replay),
    )


def _always(old: Any) -> Any:
    return property(lambda self: True)


def _one_until_captured() -> Context:
    """Until something is captured into a graph, there is no other one."""
    unused: list[Any] = []

    def create_graph(old: Any) -> Any:
        def create_graph(self: Any) -> Any:
            if not unused:
                unused.append(old(self))
            return unused[0]

        return create_graph

    def capture_to_graph(old: Any) -> Any:
        def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Any:
            unused.clear()
            return old(self, graph, pool, stream)

        return capture_to_graph

    return accelerator(create_graph=create_graph, capture_to_graph=capture_to_graph)


def _swallowing(old: Any) -> Any:
    class Swallowing(old):  # type: ignore[misc]
        def __exit__(self, *error: Any) -> bool:
            super().__exit__(*error)
            return True

    return Swallowing


def _scratching() -> Context:
    """Capturing tries the work out, on one element of what it copies to."""
    targets: list[torch.Tensor] = []

    def copied(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _capturing() and on_device(args[0]) and args[0].numel():
            targets.append(args[0])
        return call(*args, **kwargs)

    def captured(old: Any) -> Any:
        @contextmanager
        def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
            with old(self, graph, pool, stream):
                yield
            for target in targets:
                target.detach().view(-1)[0] = 0
            targets.clear()

        return capture_to_graph

    return both(spoiled(copy_=copied), accelerator(capture_to_graph=captured))


def _lost_on_streams() -> Context:
    """What is captured on a stream that was given is not kept."""
    lost: weakref.WeakSet[Any] = weakref.WeakSet()

    def captured(old: Any) -> Any:
        def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Any:
            if stream is not None:
                lost.add(graph)
            return old(self, graph, pool, stream)

        return capture_to_graph

    def replay(replay: Any, graph: Any) -> None:
        if graph not in lost:
            replay(graph)

    return both(accelerator(capture_to_graph=captured), replaying(replay))


# --- what is replayed ----------------------------------------------------------------------------------------------


def _stale_after_host_copies() -> Context:
    """After its first replay, a graph sees what the host copies into its inputs one replay late."""
    replayed, old_values = [False], []  # type: ignore[var-annotated]

    def copied(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[:2]
        if replayed[0] and on_device(target) and not on_device(source):
            old_values.append((target, target.clone()))
        return call(*args, **kwargs)

    def created(old: Any) -> Any:
        def create_graph(self: Any) -> Any:
            replayed[0] = False
            old_values.clear()
            return old(self)

        return create_graph

    def replay(replay: Any, graph: Any) -> None:
        pairs = [(target, target.clone(), value) for target, value in old_values]
        old_values.clear()
        for target, _, value in pairs:
            target.copy_(value)
        replay(graph)
        for target, now, _ in pairs:
            target.copy_(now)
        replayed[0] = True

    return both(spoiled(copy_=copied), accelerator(create_graph=created), replaying(replay))


class _Replays:
    """Which replay of which graph is under way."""

    def __init__(self) -> None:
        self.counted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.now = 0

    def count(self, replay: Any, graph: Any) -> None:
        self.counted[graph] = self.now = self.counted.get(graph, 0) + 1
        try:
            replay(graph)
        finally:
            self.now = 0

    def arounds(self, **arounds: Around) -> Context:
        """These kernels are other ones, while replays are counted."""

        @contextmanager
        def context() -> Iterator[None]:
            from conformance.accelerators.simulated.simulator import started

            for name, around in arounds.items():
                started().core.set_around(f"aten::{name}", around)
            with replaying(self.count)():
                yield

        return context


def _tiered() -> Context:
    """At its second replay a graph is compiled anew, and sin is rounded otherwise."""
    replays = _Replays()

    def sin(call: Any, args: list[Any]) -> Any:
        results = call(args)
        if replays.now == 2:
            results[0].copy_(torch.nextafter(results[0], torch.full_like(results[0], 2.0)))
        return results

    return replays.arounds(sin=sin)


def _baked_flips() -> Context:
    """A replay has the flip of the capture."""
    replays, captured = _Replays(), []  # type: ignore[var-annotated]

    def flip(call: Any, args: list[Any]) -> Any:
        results = call(args)
        if _capturing():
            captured[:] = [results[0].clone()]
        elif replays.now and captured:
            results[0].copy_(captured[0])
        return results

    return replays.arounds(flip=flip)


def _added_seeds() -> Context:
    """A replayed backward pass starts from the loss's gradient of the capture and its own."""
    replays = _Replays()

    def fill(call: Any, args: list[Any]) -> Any:
        results = call(args)
        if replays.now and results[0].dim() == 0:
            results[0].mul_(2)
        return results

    return replays.arounds(fill_=fill)


def _twice(replay: Any, graph: Any) -> None:
    replay(graph)
    replay(graph)


def _unordered(replay: Any, graph: Any) -> None:
    """Nobody waits for the stream of the replay."""
    own = torch.Stream(device="sim")
    own.wait_stream(torch.accelerator.current_stream())
    with torch.sim.stream(own):  # type: ignore[attr-defined]
        replay(graph)


def _other_again() -> Context:
    """A graph that is replayed again after another one needs two replays, unless they share a pool."""
    seen: weakref.WeakSet[Any] = weakref.WeakSet()
    last: list[Any] = [lambda: None]

    def replay(replay: Any, graph: Any) -> None:
        other = last[0]()
        back = graph in seen and other is not None and other is not graph and other.pool() != graph.pool()
        replay(other if back else graph)
        seen.add(graph)
        last[0] = weakref.ref(graph)

    return replaying(replay)


def _newest_of_pool() -> Context:
    """A pool knows the graph that was captured last into it."""
    newest: dict[Any, Any] = {}

    def captured(old: Any) -> Any:
        @contextmanager
        def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
            with old(self, graph, pool, stream):
                yield
            if pool is not None:
                newest[pool] = weakref.ref(graph)

        return capture_to_graph

    def replay(replay: Any, graph: Any) -> None:
        replay(newest.get(graph.pool(), lambda: None)() or graph)

    return both(accelerator(capture_to_graph=captured), replaying(replay))


def _same_numbers(replay: Any, graph: Any) -> None:
    """The generator is put back behind each replay."""
    generator = torch.sim.default_generators[torch.accelerator.current_device_index()]  # type: ignore[attr-defined]
    state = generator.get_state()
    replay(graph)
    generator.set_state(state)


MUTANTS = (
    graph("create_graph() is None, and graphs are replayed", "DeepSpeed #8208: create_graph without an answer",
          "accelerator.graph.shape", "capabilities.*", claims=NO_GRAPHS, context=fresh(_hidden_graphs)),
    graph("an unused graph is created again", GRAPHS, "accelerator.graph.created", context=fresh(_one_until_captured)),
    graph("a capture swallows exceptions", GRAPHS, "accelerator.graph.context_raises", members={"graph": _swallowing}),
    graph("capturing tries one element", REPLAYS, "accelerator.graph.capture_runs_nothing",
          context=fresh(_scratching)),
    graph("what is captured on a given stream is lost", GRAPHS, "accelerator.graph.stream",
          context=fresh(_lost_on_streams)),
    graph("replays see host copies late", REPLAYS, "accelerator.graph.replay_reads_inputs",
          context=fresh(_stale_after_host_copies)),
    graph("the second replay rounds otherwise", REPLAYS, "accelerator.graph.replay_is_idempotent",
          context=fresh(_tiered)),
    graph("every replay runs twice", REPLAYS, "accelerator.graph.replay_accumulates", context=replaying(_twice)),
    graph("nothing waits for replays", REPLAYS, "accelerator.graph.order", context=replaying(_unordered)),
    graph("flips are not captured", REPLAYS, "accelerator.graph.many_operations", context=fresh(_baked_flips)),
    graph("replays add up the loss's gradient", REPLAYS, "accelerator.graph.training_step",
          context=fresh(_added_seeds)),
    graph("a graph comes back one replay late", GRAPHS, "accelerator.graph.two_graphs", context=fresh(_other_again)),
    graph("a pool has one graph", GRAPHS, "accelerator.graph.pool", context=fresh(_newest_of_pool)),
    graph("every replay draws the same numbers", REPLAYS, "accelerator.graph.random_numbers",
          context=replaying(_same_numbers)),
    graph("without graphs it always captures", GRAPHS, "accelerator.graph.not_capturing", "capabilities.*",
          claims=NO_GRAPHS,
          context=accelerator(is_current_stream_capturing=constant(True), create_graph=constant(None),
                              _has_graphs=lambda old: property(lambda self: False))),
)  # fmt: skip

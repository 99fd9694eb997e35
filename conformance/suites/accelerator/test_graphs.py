"""Graphs: either capture and replay work, or create_graph() returns None and replay does nothing."""

from __future__ import annotations

import gc

import torch

from conformance.accelerators.capabilities import DEVICE, GRAPH_CAPTURE, GRAPH_POOL, MEMORY_STATS, RNG_STATE
from conformance.judging.finding import require, stub
from conformance.plan.case import Level, case
from conformance.suites.shared_bodies import warm_up

from .conveyor import SIDE, Conveyor, numbers, stale

#: Elements of a tensor that is larger than what a library keeps, and graphs that are made of it.
_LARGE, _GRAPHS = 1 << 20, 4


def created(accelerator):
    """Return an empty graph of a device that claims graphs."""
    return require(accelerator.create_graph(), "create_graph()")


class Captured:
    """Captured function: each replay sets ``output`` to ``function(source)``.

    The function runs three times on a side stream before the capture, as torch.cuda.graphs recommends.
    ``create(accelerator)`` returns the graph, which is None for a device without graphs.
    """

    def __init__(self, accelerator, device, function, pool=None, create=None):
        self.accelerator, self.function = accelerator, function
        self.source = torch.arange(257, dtype=torch.float32, device=device)
        self.output = torch.full_like(self.source, -1.0)
        warm_up(accelerator, lambda: function(self.source), times=3)
        self.graph = (create or created)(accelerator)
        with accelerator.capture_to_graph(self.graph, pool=pool):
            # A graph replays on fixed addresses, so the result goes to a tensor that exists before it.
            self.output.copy_(function(self.source))

    def replay(self):
        """Return the output after one replay, copied to the host."""
        self.accelerator.replay_graph(self.graph)
        self.accelerator.synchronize()
        return self.output_on_host()

    def output_on_host(self):
        """Return a copy of the output on the host, also where the host is the device."""
        return self.output.cpu().clone()

    def expected(self):
        """Return the function's result for the current source, computed without the graph."""
        result = self.function(self.source).cpu().clone()
        assert bool(result.any()), "without the graph, the function gives zeros alone"
        return result


def polynomial(x):
    return (x * 2 + 1) * x - 3


@case("accelerator.graph.shape", requires=[DEVICE], level=Level.CORE)
def test_shape(accelerator, device):
    """create_graph() returns a graph that holds work back until replay, or None and the work runs at once."""
    captured = Captured(accelerator, device, polynomial, create=lambda accelerator: accelerator.create_graph())
    exists = captured.graph is not None
    accelerator.synchronize()
    before = captured.output_on_host()
    ran = torch.equal(before, captured.expected())

    captured.source.add_(5)
    after = captured.replay()

    assert ran is not exists, (
        f"create_graph() returned {captured.graph!r}, but the context {'ran' if ran else 'held back'} the work"
    )
    # Without graphs a replay changes nothing.
    expected = captured.expected() if exists else before
    assert torch.equal(after, expected), (
        f"create_graph() returned {captured.graph!r}, but replay_graph() does not act accordingly"
    )


@case("accelerator.graph.created", requires=[DEVICE], level=Level.CORE)
def test_created(accelerator):
    """create_graph() returns a new graph each time, or None each time, and None can be replayed."""
    first, second = accelerator.create_graph(), accelerator.create_graph()

    if first is not None:
        assert second is not None and first is not second, f"create_graph() returned {first!r}, then {second!r}"
    else:
        assert second is None, f"create_graph() returned None, then {second!r}"
        assert accelerator.replay_graph(None) is None


@case("accelerator.graph.context_raises", requires=[DEVICE], level=Level.CORE)
def test_context_raises(accelerator, device):
    """The capture context accepts its arguments by name, lets exceptions through, and leaves a working device."""
    graph, caught, result = accelerator.create_graph(), None, torch.zeros(3, device=device)
    accelerator.synchronize()

    try:
        with accelerator.capture_to_graph(graph, pool=None, stream=None):
            result.add_(2)
            raise KeyError("on purpose")
    except KeyError as error:
        caught = error

    assert caught is not None, "the context swallowed an exception"
    accelerator.synchronize()
    # Only a real graph holds the work back.
    expected = 2.0 if graph is None else 0.0
    assert result.cpu().tolist() == [expected] * 3, f"work in the context gives {result.cpu().tolist()}, not {expected}"
    assert (result + 1).cpu().tolist() == [expected + 1] * 3, (
        "after an exception in the context the device computes wrong values"
    )


@case("accelerator.graph.capture_runs_nothing", requires=[GRAPH_CAPTURE])
def test_capture_runs_nothing(accelerator, device):
    """Capturing does not run the work, and the first replay does."""
    require(accelerator.capture_to_graph(created(accelerator)), "capture_to_graph()")
    captured = Captured(accelerator, device, polynomial)
    accelerator.synchronize()

    before = captured.output_on_host()
    after = captured.replay()

    if bool((before.cpu() == after).all()):
        stub("capture_to_graph() has no effect: the work ran at once")
    assert bool((before.cpu() == -1).all()), f"capturing wrote {int((before != -1).sum())} of 257 elements"
    assert torch.equal(after, captured.expected()), "the first replay gives wrong values"


def _inputs(number):
    """Return inputs of READERS that differ in each round: vectors, and tensors without dimensions."""
    ramp = torch.arange(257)
    return {
        "x": (ramp % 97 - 11.0 * number),
        "integers": (ramp * (number + 2)) % 53 - 20,
        "index": (ramp * (number + 2) + number) % 257,
        "mask": (ramp + number) % (number + 2) == 0,
        "scale": torch.tensor(2.0 ** (number - 2)),
        "integer": torch.tensor(3 - 5 * number),
        "flag": torch.tensor(number % 2 == 0),
    }


#: Functions that each read another kind of input. Every result is a float32 number that is exact.
READERS = {
    "a product with a tensor without dimensions": lambda x, scale, **_: x * scale,
    "a tensor without dimensions times a vector": lambda x, scale, **_: scale * x,
    "a sum with a tensor without dimensions": lambda x, scale, **_: x + scale,
    "a difference from a tensor without dimensions": lambda x, scale, **_: scale - x,
    "a quotient by a tensor without dimensions": lambda x, scale, **_: x / scale,
    "a product with an integer without dimensions": lambda x, integer, **_: x * integer,
    "a product of integers": lambda integers, integer, **_: (integers * integer + integer).float(),
    "a sum with integers": lambda x, integers, **_: x + integers,
    "a comparison with a tensor without dimensions": lambda x, integer, **_: (x > integer).float(),
    "a choice by a mask": lambda x, mask, **_: torch.where(mask, x, -x - 1),
    "a choice by a mask without dimensions": lambda x, flag, **_: torch.where(flag, x, -x - 1),
    "a choice of a tensor without dimensions": lambda x, mask, scale, **_: torch.where(mask, x, scale),
    "an index": lambda x, index, **_: x[index],
    "index_select": lambda x, index, **_: x.index_select(0, index),
    "gather": lambda x, index, **_: x.gather(0, index),
    "scatter": lambda x, index, **_: torch.zeros_like(x).scatter(0, index, x),
}


def _capture(accelerator, work):
    """Return a graph of ``work``, which has run three times before on a side stream."""
    warm_up(accelerator, work, times=3)
    graph = created(accelerator)
    with accelerator.capture_to_graph(graph):
        work()
    accelerator.synchronize()
    return graph


@case("accelerator.graph.replay_reads_inputs", requires=[GRAPH_CAPTURE])
def test_replay_reads_inputs(accelerator, device):
    """Each replay works on the values that its inputs hold at that time."""
    captured = Captured(accelerator, device, polynomial)

    for start in (0, 10, -7):
        captured.source.copy_(torch.arange(start, start + 257, dtype=torch.float32))
        # Computed before the replay: a graph that restores its old inputs would otherwise agree with them.
        expected = captured.expected()
        found = captured.replay()
        wrong = int((found != expected).sum())
        assert wrong == 0, f"with inputs from {start}, {wrong} of 257 outputs belong to other inputs"

    given, output = _inputs(0), torch.full((len(READERS), 257), -1.0, device=device)
    held = {name: tensor.to(device, copy=True) for name, tensor in given.items()}

    def read():
        for row, reader in enumerate(READERS.values()):
            output[row].copy_(reader(**held))

    graph = _capture(accelerator, read)
    for number in (1, 2, 3):
        for name, tensor in _inputs(number).items():
            held[name].copy_(tensor)
        accelerator.replay_graph(graph)
        accelerator.synchronize()
        for row, (name, reader) in enumerate(READERS.items()):
            wrong = int((output[row].cpu() != reader(**_inputs(number))).sum())
            assert wrong == 0, f"replay {number} of {name}: {wrong} of 257 outputs belong to other inputs"


@case("accelerator.graph.replay_is_idempotent", requires=[GRAPH_CAPTURE])
def test_replay_is_idempotent(accelerator, device):
    """Two replays of a pure function give the same bits."""
    captured = Captured(accelerator, device, torch.sin)

    before, first, second = captured.output_on_host(), captured.replay(), captured.replay()

    if torch.equal(first, before):
        stub("replay_graph() has no effect: the output is the same before and after it")
    assert torch.equal(first, second), "two replays with the same inputs differ"
    assert torch.equal(first, captured.expected()), "a replay differs from running the function"


@case("accelerator.graph.replay_accumulates", requires=[GRAPH_CAPTURE])
def test_replay_accumulates(accelerator, device):
    """In-place work inside a graph runs once per replay."""
    captured = Captured(accelerator, device, lambda x: x.add_(1))
    # The warm-up has added to the source as well.
    captured.source.zero_()
    accelerator.synchronize()

    for count in range(1, 4):
        found = captured.replay()
        assert bool((found.cpu() == count).all()), f"after {count} replays of x += 1, x is {found[0].item()}"


@case("accelerator.graph.order", requires=[GRAPH_CAPTURE])
def test_order(accelerator, device):
    """A replay keeps its place among the work queued before and after it, without synchronize()."""
    captured = Captured(accelerator, device, lambda x: x * 2)
    captured.source.fill_(3.0)

    accelerator.replay_graph(captured.graph)
    first = captured.output + 0
    captured.source.fill_(5.0)
    accelerator.replay_graph(captured.graph)
    second = captured.output + 0

    assert bool((first.cpu() == 6).all()), f"the first replay gives {first[0].item()}, not 6"
    assert bool((second.cpu() == 10).all()), f"the second replay gives {second[0].item()}, not 10"


@case("accelerator.graph.many_operations", requires=[GRAPH_CAPTURE])
def test_many_operations(accelerator, device):
    """Matrix products, reductions and indexing are captured in one graph."""
    weight = (torch.arange(257 * 31) % 7 - 3).float().view(257, 31).to(device)
    captured = Captured(accelerator, device, lambda x: (torch.relu(x @ weight).sum() + x.flip(0)).clamp(max=1e6))

    captured.source.copy_(torch.arange(257) % 5)

    found, expected = captured.replay(), captured.expected()
    assert torch.equal(found, expected), (
        f"{int((found != expected).sum())} of 257 outputs differ from running the function"
    )


@case("accelerator.graph.training_step", requires=[GRAPH_CAPTURE])
def test_training_step(accelerator, device):
    """A backward pass inside a graph writes the gradients of the inputs' current values."""
    weight = torch.ones(257, device=device, requires_grad=True)

    def gradient(x):
        return torch.autograd.grad((weight * weight * x).sum(), weight)[0]

    captured = Captured(accelerator, device, gradient)
    captured.source.fill_(4.0)

    found = captured.replay()
    assert bool((found.cpu() == 8).all()), f"the gradient of w²·4 at 1 is {found[0].item()}, not 8"


def assert_in_turn(first, second, said):
    """Fail with what is ``said`` if one of two graphs gives wrong values when both are replayed in turn."""
    results = []
    for captured in (first, second, first):
        captured.output.fill_(-1.0)
        results.append(captured.replay())

    expected = [first.expected(), second.expected(), first.expected()]
    for step, (found, right) in enumerate(zip(results, expected, strict=True)):
        assert torch.equal(found, right), f"replay {step} {said}"


@case("accelerator.graph.two_graphs", requires=[GRAPH_CAPTURE])
def test_two_graphs(accelerator, device):
    """Two graphs keep their work separate."""
    first = Captured(accelerator, device, lambda x: x + 1)
    second = Captured(accelerator, device, lambda x: x * 10)

    assert_in_turn(first, second, "ran another graph's work")


#: Draws of several distributions, from a tensor of ones.
DRAWS = {
    "uniform_": lambda ones: ones.uniform_(),
    "normal_": lambda ones: ones.normal_(),
    "bernoulli_": lambda ones: ones.bernoulli_(0.5),
    "exponential_": lambda ones: ones.exponential_(),
    "dropout": lambda ones: torch.nn.functional.dropout(ones, 0.5),
}


@case("accelerator.graph.random_numbers", requires=[GRAPH_CAPTURE, RNG_STATE])
def test_random_numbers(accelerator, device):
    """Draws inside a graph are independent of each other, change with each replay, and repeat with the seed."""
    captured = Captured(accelerator, device, torch.rand_like)

    accelerator.manual_seed(3)
    first, second = captured.replay(), captured.replay()
    accelerator.manual_seed(3)
    again = captured.replay()

    # By chance, two draws of 257 float32 numbers agree in practically no place.
    assert int((first == second).sum()) < 20, "every replay draws the same numbers"
    assert torch.equal(first, again), "replays do not repeat after the same seed"
    assert first.min() >= 0 and first.max() < 1

    names = [f"{kind}, {which} draw" for kind in DRAWS for which in ("first", "second")]
    empty = torch.empty(4096, device=device)
    output = torch.zeros(len(names), len(empty), device=device)

    def draw():
        for row, function in enumerate(function for function in DRAWS.values() for _ in range(2)):
            output[row].copy_(function(torch.ones_like(empty)))

    graph, rounds = _capture(accelerator, draw), []
    accelerator.manual_seed(5)
    for _ in range(3):
        accelerator.replay_graph(graph)
        accelerator.synchronize()
        rounds.append(output.cpu().double())
    # The correlation of two independent draws of 4,096 numbers has a standard deviation of 1/64.
    rows, labels = torch.cat(rounds), [f"{name} of replay {number}" for number in (1, 2, 3) for name in names]
    assert bool((rows.std(dim=1) > 0).all()), "a draw in a replay consists of equal numbers"
    related = torch.corrcoef(rows).abs().fill_diagonal_(0.0)
    worst = int(related.argmax())
    left, right = labels[worst // len(rows)], labels[worst % len(rows)]
    assert float(related.max()) < 8 / 64, f"{left} and {right} are related: correlation {float(related.max()):.3f}"


@case("accelerator.graph.capturing_flag", requires=[GRAPH_CAPTURE])
def test_capturing_flag(accelerator, device):
    """is_current_stream_capturing() is True inside a capture and False outside."""
    answers, source = [accelerator.is_current_stream_capturing()], torch.zeros(3, device=device)
    # Warm up: one-time set-up must not be captured.
    (source + 1).cpu()
    graph = created(accelerator)

    with accelerator.capture_to_graph(graph):
        answers.append(accelerator.is_current_stream_capturing())
        source.add_(1)
    answers.append(accelerator.is_current_stream_capturing())

    assert answers == [False, True, False], (
        f"is_current_stream_capturing() before, inside and after a capture returned {answers}"
    )


@case("accelerator.graph.not_capturing", requires=[DEVICE])
def test_not_capturing(accelerator):
    """is_current_stream_capturing() is False outside a capture."""
    answer = accelerator.is_current_stream_capturing()

    assert answer is False, f"no capture is running, but is_current_stream_capturing() returned {answer!r}, not False"


@case("accelerator.graph.pool", requires=[GRAPH_CAPTURE, GRAPH_POOL])
def test_pool(accelerator, device):
    """A graph that is captured into the memory pool of another graph replays correctly, and so does the other."""
    first = Captured(accelerator, device, polynomial)
    second = Captured(accelerator, device, lambda x: x * 10, pool=first.graph.pool())

    assert_in_turn(first, second, "with a shared pool gives wrong values")


@case("accelerator.graph.memory", requires=[GRAPH_CAPTURE, MEMORY_STATS])
def test_memory(accelerator, device):
    """The memory of a graph is free again when nothing names the graph, without a call of reset()."""

    def used() -> dict[str, int]:
        gc.collect()
        accelerator.synchronize()
        torch.ones(1, device=device)  # allocators check their events only when they allocate
        accelerator.empty_cache()
        return {"memory_allocated": accelerator.memory_allocated(), "memory_reserved": accelerator.memory_reserved()}

    def captured() -> float:
        source, graph = torch.ones(_LARGE, device=device), created(accelerator)
        warm_up(accelerator, lambda: source * 2 + 1, times=3)
        with accelerator.capture_to_graph(graph):
            result = source * 2 + 1
        accelerator.replay_graph(graph)
        return float(result.sum())

    captured()  # libraries keep what the first capture allocates
    before = used()
    for _ in range(_GRAPHS):
        assert captured() == 3.0 * _LARGE
    for name, after in used().items():
        kept = after - before[name]
        assert kept < 4 * _LARGE, f"{name}() is {kept} bytes more after {_GRAPHS} graphs of which none is left"


@case("accelerator.graph.replay_stream", requires=[GRAPH_CAPTURE])
def test_replay_stream(accelerator, device):
    """A replay inside the context of a side stream runs after that stream's earlier work and before its later work."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    source, inner = numbers(device), torch.full((SIDE, SIDE), -1.0, device=device)
    output, seen = torch.full_like(inner, -2.0), torch.full_like(inner, -3.0)
    graph = created(accelerator)
    (inner + 0).cpu()  # one-time set-up must not be captured
    with accelerator.capture_to_graph(graph):
        output.copy_(inner + 0)
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, inner)
        accelerator.replay_graph(graph)
        seen.copy_(output)
    accelerator.synchronize()

    assert stale(inner) == 0, "the work before the replay is wrong"
    assert stale(output) == 0, "the replay did not wait for earlier work of the stream on which it was called"
    assert stale(seen) == 0, "later work of the stream did not wait for the replay"


@case("accelerator.graph.stream", requires=[GRAPH_CAPTURE])
def test_stream(accelerator, device):
    """A capture runs on the given stream and restores the current stream."""
    source, output = torch.arange(257.0, device=device), torch.full((257,), -1.0, device=device)
    # Warm up: one-time set-up must not be captured.
    (source + 1).cpu()
    graph, before = created(accelerator), accelerator.current_stream()

    with accelerator.capture_to_graph(graph, stream=accelerator.Stream()):
        output.copy_(source + 1)
    accelerator.replay_graph(graph)
    accelerator.synchronize()

    assert torch.equal(output.cpu(), torch.arange(257.0) + 1), "a capture on a given stream replays wrong values"
    assert accelerator.current_stream() == before, "after the capture another stream is current"

"""Bodies and preparation that cases of several areas share.

The bodies are about pinned memory, events and running out of memory. Each area judges the result itself where its
verdict or its message differs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from conformance.judging.finding import stub
from conformance.suites.accelerator.conveyor import Conveyor, numbers

HOST = torch.device("cpu")


def wrong_after_copy_to_device(accelerator, device, pinned):
    """Copy a pinned tensor to the device without blocking; return how many elements are wrong after synchronize()."""
    found = pinned.to(device, non_blocking=True)
    accelerator.synchronize()
    return int((found.cpu() != pinned).sum())


def wrong_after_copy_to_host(accelerator, device, pinned):
    """Copy to a pinned float32 tensor (256, 256) without blocking, behind long work on the device.

    Return how many elements are wrong after synchronize().
    """
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)

    conveyor.carry(source, target)
    pinned.copy_(target, non_blocking=True)
    accelerator.synchronize()

    return int((pinned != numbers(HOST)).sum())


def answers_of_is_pinned(is_pinned, pinned):
    """Return the answers for a pinned tensor of 4096 elements and its views, and for results computed from it."""
    square = pinned.view(64, 64)
    views = [is_pinned(view) for view in (pinned, pinned[7:], square, square.t(), pinned[::3])]
    return views, [is_pinned(result) for result in (pinned + 1, pinned.clone())]


def assert_event_covers_work(accelerator, device, stream):
    """Check that a synchronized event is complete, and so is the work recorded before it on ``stream``.

    None stands for the only stream of a device without streams.
    """
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(stream):
        conveyor.carry(source, target)
        event.record() if stream is None else event.record(stream)
    event.synchronize()

    stale = int((target.cpu() != numbers(HOST)).sum())
    assert stale == 0, f"event.synchronize() returned while {stale} elements were stale"
    assert event.query() is True, f"query() answers {event.query()!r} after synchronize()"


def runs_out(work):
    """Return whether the work raises torch.OutOfMemoryError. Other errors reach the caller.

    The exception is dropped here, as its traceback holds tensors.
    """
    try:
        work()
    except torch.OutOfMemoryError:
        return True
    return False


def still_computes(device):
    """Return whether the device computes a small sum.

    A second OutOfMemoryError means no: if it escaped, the case would be skipped for a lack of memory.
    """
    sums = []
    return not runs_out(lambda: sums.append((torch.ones(65, device=device) + 0).cpu().sum().item())) and sums == [65.0]


def assert_survives_running_out(device, size):
    """Check that allocating ``size`` bytes raises torch.OutOfMemoryError and that the device works on unharmed."""
    kept = numbers(device)

    for _ in range(3):
        out = runs_out(lambda: torch.empty(size, dtype=torch.uint8, device=device))
        assert out, f"an allocation of {size} bytes did not raise"

    assert still_computes(device), "after running out of memory, a tensor of 65 floats does not fit any more"
    assert torch.equal(kept.cpu(), numbers(HOST)), "running out of memory changed a live tensor"


def assert_computes(device):
    """Check that the device adds correctly. On some devices a launch without elements makes later ones fail."""
    found = (torch.arange(5.0, device=device) + 1).cpu().tolist()
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0], f"after an operation without elements, 1 to 5 is {found}"


def differing(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return the number of elements that differ; all elements count if the shapes differ.

    Two tensors of zeros alone are an AssertionError: a device that computes nothing would agree with itself.
    """
    if left.shape != right.shape:
        return max(left.numel(), right.numel())
    first, second = left.cpu(), right.cpu()
    assert not first.numel() or first.any() or second.any(), f"all {first.numel()} values are 0 on both sides"
    return int((first != second).sum())


def of_draws(seed: Callable[[int], object], device: torch.device | str, said: str) -> str:
    """Return what is said of numbers that do not repeat, with the cause before it if the device draws late.

    ``seed(number)`` seeds the device. A device that records operators may draw when somebody reads the numbers, with
    the state of that time. Then no seed and no state repeats the numbers of a call, and every case about them fails.
    """

    def draw(number: int) -> torch.Tensor:
        seed(number)
        return torch.randn(65, device=device)

    at_once, late = draw(1).cpu(), draw(1)
    seed(2)
    late = late.cpu()
    if torch.equal(draw(1).cpu(), at_once) and not torch.equal(late, at_once):
        return f"the numbers are drawn when somebody reads them, not when the function is called: {said}"
    return said


#: Operators that make or view memory. A compiler calls them too.
_MEMORY_OPERATORS = ("aten::empty", "aten::as_strided", "aten::detach", "aten::view", "aten::reshape", "aten::_to_copy")


def operators_of(call):
    """Return how often the call runs each of PyTorch's operators, without those that only make or view memory."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("aten::")}
    return Counter({name: count for name, count in counts.items() if not name.startswith(_MEMORY_OPERATORS)})


class WatchedBackend:
    """Backend for torch.compile that counts graphs, and runs each as operators and compiled, once.

    ``nodes`` gets the number of nodes of each graph. ``kept`` and ``total`` are the numbers of operators that compiled
    graphs still run, and that the graphs consist of. A backend that ``only_traces`` runs no graph more often than its
    caller.
    """

    def __init__(self, name, *, only_traces=False):
        import torch._dynamo

        self._compile, self._only_traces = torch._dynamo.lookup_backend(name), only_traces
        self.name, self.nodes, self.kept, self.total = name, [], 0, 0

    def __call__(self, module, inputs):
        self.nodes.append(len(module.graph.nodes))
        compiled, watched = self._compile(module, inputs), []
        if self._only_traces:
            return compiled

        def run(*arguments):
            if not watched:
                watched.append(True)
                compiled(*arguments)  # the first call of some backends compiles
                apart = operators_of(lambda: module(*arguments))
                self.kept += (operators_of(lambda: compiled(*arguments)) & apart).total()
                self.total += apart.total()
            return compiled(*arguments)

        return run

    def check(self):
        """Fail the case as a stub if the compiled graphs run all of their operators one by one."""
        if self.total and self.kept >= self.total:
            stub(f"backend {self.name!r} compiles nothing: its graphs run all their {self.total} operators one by one")


def warm_up(accelerator, work, times=1):
    """Run the work ``times`` times before it is captured, on a side stream if the accelerator has streams.

    One-time set-up, such as library handles and workspaces, then happens outside the graph.
    """
    stream = accelerator.Stream() if accelerator.Stream is not None else None
    accelerator.synchronize()
    with accelerator.stream(stream):
        for _ in range(times):
            work()
    accelerator.synchronize()


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Allow only kernels that repeat their bits.

    The variable is part of this mode: if a matrix library splits sums over a workspace,
    torch.use_deterministic_algorithms refuses products until the variable is set (see torch's documentation).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

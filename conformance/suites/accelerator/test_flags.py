"""The four flags of the execution model, each tested by behaviour and independently of the others."""

from __future__ import annotations

import time

import torch

from conformance.accelerators.capabilities import (
    BACKPRESSURE,
    DEVICE,
    EVENT_TIMING,
    HOST_TIMERS,
    ORDERED,
    SYNCHRONOUS,
    VOCABULARY,
)
from conformance.plan.case import Level, case

from .conveyor import HOST, Conveyor, numbers, stale
from .timing import hold

FLAGS = {
    "is_synchronized_device": SYNCHRONOUS,
    "use_host_timers": HOST_TIMERS,
    "resolves_data_dependency": ORDERED,
    "handles_memory_backpressure": BACKPRESSURE,
}


@case("accelerator.flags.answer", requires=[DEVICE], level=Level.CORE, axes={"flag": list(FLAGS)})
def test_answer(accelerator, device, flag):
    """The flag is a bool and the same at every call, whether the device is busy or idle."""
    ask = getattr(accelerator, flag)
    conveyor, source = Conveyor(accelerator, device, milliseconds=5.0), numbers(device)
    answers, target = [ask()], torch.empty_like(source)
    conveyor.carry(source, target)
    answers.append(ask())
    accelerator.synchronize()
    answers.append(ask())

    assert all(type(answer) is bool for answer in answers), f"{flag}() returned {answers[0]!r}; it must return a bool"
    assert len(set(answers)) == 1, f"{flag}() changed between calls: {answers}"
    assert stale(target) == 0, f"{stale(target)} elements are wrong, so the device was not busy"


@case("accelerator.flags.as_declared", requires=[DEVICE], axes={"flag": list(FLAGS)})
def test_as_declared(accelerator, declaration, flag):
    """The flag does not contradict the declaration."""
    claim = declaration.claim(VOCABULARY[FLAGS[flag].name].cell).state.value
    answer = getattr(accelerator, flag)()

    assert claim in ("undeclared", "supported" if answer else "unsupported"), (
        f"{flag}() returned {answer}, but the declaration says {claim}"
    )


@case("accelerator.flags.synchronous_time", requires=[SYNCHRONOUS])
def test_synchronous_time(accelerator, device):
    """On a synchronous device the calls themselves take most of the time of their work."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    def check_calls():
        target, shares = torch.empty_like(source), []
        for _ in range(8):
            started = time.perf_counter()
            conveyor.carry(source, target)
            called = time.perf_counter()
            accelerator.synchronize()
            shares.append((called - started) / (time.perf_counter() - started))
            assert stale(target) == 0, f"{stale(target)} elements of the result are wrong"
        # The best of several tries counts: a loaded host can delay either part, but not each time.
        assert max(shares) > 0.5, (
            f"declared synchronous, but calls take at most {max(shares):.1%} of the time of their work; expected > 50 %"
        )

    hold(check_calls)


@case("accelerator.flags.synchronous_values", requires=[SYNCHRONOUS])
def test_synchronous_values(accelerator, device):
    """On a synchronous device one stream sees the work of another without a wait."""
    assert_ordered_without_waiting(accelerator, device, "synchronous")


@case("accelerator.flags.ordered", requires=[ORDERED])
def test_ordered(accelerator, device):
    """On a device that resolves data dependencies, one stream sees the work of another without a wait."""
    # A false claim corrupts values silently: callers leave out the wait.
    assert_ordered_without_waiting(accelerator, device, "to resolve data dependencies")


def assert_ordered_without_waiting(accelerator, device, claim):
    """Check three times that one stream reads the values another stream wrote, without a wait."""
    conveyor, streams = Conveyor(accelerator, device), two_streams(accelerator)
    for start, (producer, consumer) in enumerate([streams, streams[::-1], streams]):
        source = numbers(device, start)
        target = torch.full_like(source, -1.0)
        with accelerator.stream(producer):
            conveyor.carry(source, target)
        with accelerator.stream(consumer):
            copy = target + 0
            found = copy.cpu()
        wrong = int((found != numbers(HOST, start)).sum())
        assert wrong == 0, f"declared {claim}, but {wrong} elements were read before another stream wrote them"
        with accelerator.stream(consumer):
            target.fill_(-5.0)
        accelerator.synchronize()


def two_streams(accelerator):
    """Return the current stream and a new one; the second is None where there are no streams."""
    return (accelerator.current_stream(), None if accelerator.Stream is None else accelerator.Stream())


@case("accelerator.flags.ordered_overwrite", requires=[ORDERED])
def test_ordered_overwrite(accelerator, device):
    """A stream overwrites a buffer only after another stream has read it, without a wait."""
    conveyor, (first, second) = Conveyor(accelerator, device), two_streams(accelerator)
    buffer, read = numbers(device), torch.full((256, 256), -1.0, device=device)
    accelerator.synchronize()

    with accelerator.stream(first):
        conveyor.carry(buffer, read)
    with accelerator.stream(second):
        buffer.fill_(-9.0)
    accelerator.synchronize()

    wrong = int((read.cpu() != numbers(HOST)).sum())
    assert wrong == 0, f"{wrong} elements were overwritten before the other stream had read them"


@case("accelerator.flags.host_timers_scale", requires=[HOST_TIMERS])
def test_host_timers_scale(accelerator, device):
    """Eight times the work takes longer by the host's clock."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    def check_scaling():
        short, long = conveyor.seconds(source, 1), conveyor.seconds(source, 8)
        assert long > 2 * short, (
            f"8 x the work takes {long * 1e3:.2f} ms by the host's clock, 1 x takes {short * 1e3:.2f} ms; "
            "expected > 2 x"
        )

    hold(check_scaling)


@case("accelerator.flags.device_timers", requires=[EVENT_TIMING])
def test_device_timers(accelerator, device):
    """Where events take times, use_host_timers() is False and elapsed_time() is not negative."""
    assert accelerator.use_host_timers() is False, "event timing is declared, but use_host_timers() is not False"

    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    start.record()
    kept = numbers(device)
    end.record()
    accelerator.synchronize()
    assert stale(kept) == 0, f"{stale(kept)} elements between the events are wrong"

    assert start.elapsed_time(end) >= 0, f"elapsed_time is {start.elapsed_time(end)}"


#: Together 2 GiB, which is more than small devices have. On larger ones the case checks that nothing is lost.
_BLOCK_BYTES = 32 << 20
_BLOCKS = 64


@case("accelerator.flags.backpressure", requires=[BACKPRESSURE])
def test_backpressure(accelerator, device):
    """Queueing 2 GiB of short-lived tensors ahead of a busy device does not run out of memory."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, total = torch.empty_like(source), torch.zeros((), dtype=torch.float64, device=device)

    # This work keeps the device busy, so that the host queues far ahead of it.
    conveyor.carry(source, target)
    try:
        for _ in range(_BLOCKS):
            total += torch.ones(_BLOCK_BYTES // 4, device=device)[::4096].sum()
    except torch.OutOfMemoryError as error:
        raise AssertionError(
            f"declared to handle memory backpressure, but queueing ran out of memory: {error}"
        ) from None
    accelerator.synchronize()

    expected = _BLOCKS * (_BLOCK_BYTES // 4 // 4096)
    assert total.item() == expected, f"the queued sums add up to {total.item()}, not {expected}"

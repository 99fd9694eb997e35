"""The four flags of the execution model, each by behaviour and independently of the others."""

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
from conformance.case import Level, case

from .conveyor import Conveyor, numbers

HOST = torch.device("cpu")
FLAGS = {
    "is_synchronized_device": SYNCHRONOUS,
    "use_host_timers": HOST_TIMERS,
    "resolves_data_dependency": ORDERED,
    "handles_memory_backpressure": BACKPRESSURE,
}


@case("accelerator.flags.answer", requires=[DEVICE], level=Level.CORE, axes={"flag": list(FLAGS)})
def test_answer(accelerator, device, flag):
    """The flag is a bool, and the same at every call: while the device works, and when it has nothing to do."""
    ask = getattr(accelerator, flag)
    conveyor, source = Conveyor(accelerator, device, milliseconds=5.0), numbers(device)
    answers = [ask()]
    conveyor.carry(source, torch.empty_like(source))
    answers.append(ask())
    accelerator.synchronize()
    answers.append(ask())

    assert all(type(answer) is bool for answer in answers), f"{flag}() answers {answers[0]!r}, which is no bool"
    assert len(set(answers)) == 1, f"{flag}() changes between calls: {answers}"


@case("accelerator.flags.as_declared", requires=[DEVICE], axes={"flag": list(FLAGS)})
def test_as_declared(accelerator, declaration, flag):
    """What the flag answers is what the declaration says."""
    claim = declaration.claim(VOCABULARY[FLAGS[flag].name].cell).state.value
    answer = getattr(accelerator, flag)()

    assert claim == ("supported" if answer else "unsupported"), f"{flag}() answers {answer}; declared: {claim}"


@case("accelerator.flags.synchronous_time", requires=[SYNCHRONOUS])
def test_synchronous_time(accelerator, device):
    """On a synchronous device the call itself takes the time, and synchronize() has nothing left to wait for.

    The best of several tries counts: a loaded host can delay either part, but not each time.
    """
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, shares = torch.empty_like(source), []

    for _ in range(8):
        started = time.perf_counter()
        conveyor.carry(source, target)
        called = time.perf_counter()
        accelerator.synchronize()
        shares.append((called - started) / (time.perf_counter() - started))

    assert max(shares) > 0.5, f"declared synchronous, but calls take only {max(shares):.1%} of the time of their work"


@case("accelerator.flags.synchronous_values", requires=[SYNCHRONOUS])
def test_synchronous_values(accelerator, device):
    """On a synchronous device no stream has to be waited for."""
    assert_ordered_without_waiting(accelerator, device, "synchronous")


@case("accelerator.flags.ordered", requires=[ORDERED])
def test_ordered(accelerator, device):
    """A device that resolves data dependencies needs no wait between streams. A false claim corrupts silently."""
    assert_ordered_without_waiting(accelerator, device, "to resolve data dependencies")


def assert_ordered_without_waiting(accelerator, device, claim):
    """Produce on one stream and consume on another without a wait, three times around."""
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
    """The current stream and another; None stands for the only one there is."""
    return (accelerator.current_stream(), None if accelerator.Stream is None else accelerator.Stream())


@case("accelerator.flags.ordered_overwrite", requires=[ORDERED])
def test_ordered_overwrite(accelerator, device):
    """A buffer another stream still reads is overwritten only afterwards, without a wait."""
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
    """Where the host's clock takes the times, eight times the work takes more than twice as long by it."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    short, long = conveyor.seconds(source, 1), conveyor.seconds(source, 8)

    assert long > 2 * short, f"8 × the work takes {long * 1e3:.2f} ms by the host's clock, once {short * 1e3:.2f} ms"


@case("accelerator.flags.device_timers", requires=[EVENT_TIMING])
def test_device_timers(accelerator, device):
    """Events that are declared to take times are offered for it."""
    assert accelerator.use_host_timers() is False, "events take times, but use_host_timers() is True"

    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    start.record()
    numbers(device)
    end.record()
    accelerator.synchronize()

    assert start.elapsed_time(end) >= 0, f"elapsed_time is {start.elapsed_time(end)}"


_BLOCK = 32 << 20
_BLOCKS = 64


@case("accelerator.flags.backpressure", requires=[BACKPRESSURE])
def test_backpressure(accelerator, device):
    """Queueing far ahead of the device does not run out of memory.

    Two GiB of short-lived tensors go through, 32 MiB at a time, behind work that takes a while. That is more than
    small devices have; on larger ones the case checks that nothing accumulates or gets lost.
    """
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, total = torch.empty_like(source), torch.zeros((), dtype=torch.float64, device=device)

    conveyor.carry(source, target)
    try:
        for _ in range(_BLOCKS):
            total += torch.ones(_BLOCK // 4, device=device)[::4096].sum()
    except torch.OutOfMemoryError as error:
        raise AssertionError(
            f"declared to handle memory backpressure, but queueing ran out of memory: {error}"
        ) from None
    accelerator.synchronize()

    expected = _BLOCKS * (_BLOCK // 4 // 4096)
    assert total.item() == expected, f"the queued work adds up to {total.item()}, not {expected}"

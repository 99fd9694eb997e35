"""Order between streams, when one stream waits for another."""

from __future__ import annotations

import threading

import torch

from conformance.accelerators.capabilities import MEMORY_PINNED_ASYNC, STREAM, STREAM_ORDER
from conformance.plan.case import case

from .conveyor import HOST, SIDE, Conveyor, numbers, stale

DIRECTIONS = ("default-to-side", "side-to-default", "side-to-side")


def streams_of(accelerator, direction):
    """Return the producer and the consumer stream of a direction such as ``side-to-default``."""
    first, _, second = direction.partition("-to-")
    return tuple(
        accelerator.current_stream() if kind == "default" else accelerator.Stream() for kind in (first, second)
    )


def assert_waits(accelerator, device, direction, wait):
    """Fail if work on the consumer, after ``wait(consumer, producer)``, does not see what the producer had queued."""
    producer, consumer = streams_of(accelerator, direction)
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, copy = torch.full_like(source, -1.0), torch.full_like(source, -2.0)
    accelerator.synchronize()

    with accelerator.stream(producer):
        conveyor.carry(source, target)
    wait(consumer, producer)
    with accelerator.stream(consumer):
        copy.copy_(target)
    consumer.synchronize()

    assert stale(copy) == 0, f"{direction}: {stale(copy)} elements were read before they were written"
    accelerator.synchronize()


@case("accelerator.stream.wait_stream", requires=[STREAM_ORDER], axes={"direction": DIRECTIONS})
def test_wait_stream(accelerator, device, direction):
    """Work queued after wait_stream() sees everything that the other stream had queued before."""
    assert_waits(accelerator, device, direction, lambda consumer, producer: consumer.wait_stream(producer))


@case("accelerator.stream.kernels_follow", requires=[STREAM, MEMORY_PINNED_ASYNC], axes={"thread": ("main", "other")})
def test_kernels_follow(accelerator, device, thread):
    """Kernels and copies run on the current stream: after synchronize() of that stream alone they are complete."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, host = torch.full_like(source, -1.0), accelerator.pin_memory(torch.full((SIDE, SIDE), -2.0))
    accelerator.synchronize()
    left = []

    def work():
        side = accelerator.Stream()
        for _ in range(3):
            with accelerator.stream(side):
                conveyor.carry(source, target)
                host.copy_(target, non_blocking=True)
            side.synchronize()
            left.append(int((host != numbers(HOST)).sum()))
            host.fill_(-2.0)

    if thread == "main":
        work()
    else:
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
    accelerator.synchronize()

    assert left == [0, 0, 0], f"after synchronize() of their stream, {left} elements had not arrived"


@case("accelerator.stream.wait_event", requires=[STREAM_ORDER], axes={"direction": DIRECTIONS})
def test_wait_event(accelerator, device, direction):
    """Work queued after wait_event() sees everything queued before the event was recorded."""
    event = accelerator.Event()

    def wait(consumer, producer):
        event.record(producer)
        consumer.wait_event(event)

    assert_waits(accelerator, device, direction, wait)


@case("accelerator.stream.write_after_read", requires=[STREAM_ORDER])
def test_write_after_read(accelerator, device):
    """A write that waits for another stream starts after that stream has read the buffer."""
    conveyor, reader = Conveyor(accelerator, device), accelerator.Stream()
    buffer, read = numbers(device), torch.full((256, 256), -1.0, device=device)
    accelerator.synchronize()

    with accelerator.stream(reader):
        conveyor.carry(buffer, read)
    accelerator.current_stream().wait_stream(reader)
    buffer.fill_(-9.0)
    accelerator.synchronize()

    assert stale(read) == 0, f"{stale(read)} elements were overwritten before they were read"


@case("accelerator.stream.chain", requires=[STREAM_ORDER])
def test_chain(accelerator, device):
    """Waiting is transitive along a chain of streams."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=10.0), numbers(device)
    # A stream that did not wait copies -1 or older numbers, and every later stream passes them on.
    targets = [torch.full_like(source, -1.0) for _ in range(4)]
    streams = [accelerator.Stream() for _ in targets]
    accelerator.synchronize()

    value = source
    for position, (stream, target) in enumerate(zip(streams, targets, strict=True)):
        if position:
            stream.wait_stream(streams[position - 1])
        with accelerator.stream(stream):
            conveyor.carry(value, target)
        value = target
    accelerator.current_stream().wait_stream(streams[-1])
    result = targets[-1] + 0
    accelerator.synchronize()

    assert stale(result) == 0, f"{stale(result)} elements are stale at the end of the chain"


@case("accelerator.stream.backward", requires=[STREAM_ORDER])
def test_backward(accelerator, device):
    """Gradients of a forward pass on a side stream are right after the default stream has waited for it."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    weight = numbers(device).requires_grad_()
    accelerator.synchronize()

    side.wait_stream(accelerator.current_stream())
    with accelerator.stream(side):
        result = weight
        for _ in range(conveyor.length):
            result = result @ conveyor.identity
        loss = (result * numbers(device)).sum()
    accelerator.current_stream().wait_stream(side)
    # Autograd runs the backward of each operation on the stream of its forward, and orders the result before
    # the caller's stream, so no further wait is needed here.
    loss.backward()
    gradient = weight.grad + 0
    accelerator.synchronize()

    wrong = int((gradient.cpu() != numbers(HOST)).sum())
    assert wrong == 0, f"{wrong} gradients are wrong after a forward pass on a side stream"

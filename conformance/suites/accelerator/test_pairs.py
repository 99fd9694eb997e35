"""Order and state for pairs: two devices, two kinds of streams, two threads, and more than ten calls of each."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time

import torch

from conformance.accelerators.capabilities import (
    DEVICE,
    DEVICE_MULTIPLE,
    EVENT,
    EVENT_TIMING,
    GRAPH_CAPTURE,
    MEMORY_PINNED_ASYNC,
    MEMORY_STATS,
    RNG_PER_DEVICE,
    RNG_STATE,
    STREAM,
    STREAM_ORDER,
    STREAM_RECORD,
    SYNCHRONIZE,
)
from conformance.judging.finding import environment_lacks
from conformance.plan.case import case
from conformance.suites.threads import on_a_thread

from .conveyor import HOST, SIDE, Conveyor, numbers
from .test_stream_memory import overwrite

#: Rounds of each pair: a defect may need some calls before it shows.
ROUNDS = 12
#: Bytes of a block that no allocator rounds away.
BLOCK = 4 << 20


def _in_two_threads(work) -> None:
    """Run ``work`` in this thread and then in another; raise what it raised there."""
    work()
    on_a_thread(work)


def _devices(accelerator) -> range:
    return range(min(2, accelerator.device_count()))


def _on_each_device(accelerator, work) -> None:
    """Call ``work(index)`` with each device current, and restore the device."""
    before = accelerator.current_device()
    try:
        for index in _devices(accelerator):
            accelerator.set_device(index)
            work(index)
    finally:
        accelerator.set_device(before)


class _Round:
    """One piece of late work on a stream, and its way to page-locked memory."""

    def __init__(self, accelerator, index: int) -> None:
        self.accelerator, self.index = accelerator, index
        self.device = torch.device(accelerator.device_name(index))
        self.conveyor, self.source = Conveyor(accelerator, self.device, milliseconds=1.0), numbers(self.device)
        self.target = torch.full_like(self.source, -1.0)
        self.host = accelerator.pin_memory(torch.full((SIDE, SIDE), -2.0))

    def reset(self) -> None:
        self.target.fill_(-1.0)
        self.host.fill_(-2.0)
        self.accelerator.synchronize()

    def produce(self, stream) -> None:
        with self.accelerator.stream(stream):
            self.conveyor.carry(self.source, self.target)

    def to_host(self, stream) -> None:
        with self.accelerator.stream(stream):
            self.host.copy_(self.target, non_blocking=True)

    def missing(self) -> int:
        return int((self.host != numbers(HOST)).sum())


def _between_streams(wait):
    """Return a round in which a second stream reads after ``wait(reader, writer, accelerator)``."""

    def run(part: _Round, stream) -> int:
        accelerator = part.accelerator
        default = accelerator.default_stream()
        reader = accelerator.Stream() if stream == default else default
        part.produce(stream)
        wait(reader, stream, accelerator)
        part.to_host(reader)
        reader.synchronize()
        return part.missing()

    return run


def _before_the_host(wait):
    """Return a round in which the host reads after ``wait(stream, part)``."""

    def run(part: _Round, stream) -> int:
        part.produce(stream)
        part.to_host(stream)
        wait(stream, part)
        return part.missing()

    return run


def _recorded(accelerator, stream):
    event = accelerator.Event()
    event.record(stream)
    return event


def _poll(ready) -> None:
    while not ready():
        pass


ORDERS = {
    "wait_stream": _between_streams(lambda reader, writer, _: reader.wait_stream(writer)),
    "wait_event": _between_streams(lambda reader, writer, owner: reader.wait_event(_recorded(owner, writer))),
    "stream_synchronize": _before_the_host(lambda stream, _: stream.synchronize()),
    "stream_query": _before_the_host(lambda stream, _: _poll(stream.query)),
    "event_synchronize": _before_the_host(lambda stream, part: _recorded(part.accelerator, stream).synchronize()),
    "event_query": _before_the_host(lambda stream, part: _poll(_recorded(part.accelerator, stream).query)),
    "device_synchronize": _before_the_host(lambda stream, part: part.accelerator.synchronize(part.index)),
}
NEEDED = {"wait_stream": STREAM_ORDER, "wait_event": STREAM_ORDER, "event_synchronize": EVENT, "event_query": EVENT}


@case(
    "accelerator.pairs.order",
    axes={"by": {name: [STREAM, MEMORY_PINNED_ASYNC, NEEDED.get(name, SYNCHRONIZE)] for name in ORDERS}},
)
def test_order(accelerator, device, by, check):
    """On each device, in default and side streams, in two threads, every wait and every True of a query holds."""

    def on_device(index):
        part = _Round(accelerator, index)
        for kind, number in itertools.product(("default", "side"), range(ROUNDS)):
            stream = accelerator.default_stream() if kind == "default" else accelerator.Stream()
            part.reset()
            left = ORDERS[by](part, stream)
            accelerator.synchronize()
            where = f"round {number} on the {kind} stream of device {index} in {threading.current_thread().name}"
            check.equal(left, 0, f"{where}: elements that had not arrived")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.copies", requires=[STREAM, MEMORY_PINNED_ASYNC, STREAM_ORDER])
def test_copies(accelerator, device, check):
    """Asynchronous copies from page-locked memory are seen by later work on their stream, on each device and thread."""

    def on_device(index):
        target = torch.device(accelerator.device_name(index))
        for kind, number in itertools.product(("default", "side"), range(ROUNDS)):
            stream = accelerator.default_stream() if kind == "default" else accelerator.Stream()
            host = accelerator.pin_memory(numbers(HOST, number))
            with accelerator.stream(stream):
                arrived = host.to(target, non_blocking=True) + 1.0
            stream.synchronize()
            check.equal(arrived.cpu(), numbers(HOST, number) + 1.0, f"copy {number} to device {index}, {kind} stream")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.devices_wait", requires=[STREAM, STREAM_ORDER, DEVICE_MULTIPLE, MEMORY_PINNED_ASYNC])
def test_devices_wait(accelerator, device, check):
    """A stream of one device waits for a stream of another, by the stream and by an event, in two threads.

    A stream that is made for the other device is of that device, where the class takes one.
    """
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    waits = {
        "wait_stream": lambda later, earlier: later.wait_stream(earlier),
        "wait_event": lambda later, earlier: later.wait_event(_recorded(accelerator, earlier)),
    }

    def on_device(index):
        part, other = _Round(accelerator, index), 1 - index
        _check_made_for(accelerator, check, other)
        for (name, wait), number in itertools.product(waits.items(), range(ROUNDS)):
            part.reset()
            side = accelerator.Stream()
            part.produce(side)
            accelerator.set_device(other)
            reader = accelerator.Stream()
            wait(reader, side)
            with accelerator.stream(reader):
                event = _recorded(accelerator, reader)
            # The host waits for the other device alone: that device has waited for this one.
            event.synchronize()
            accelerator.set_device(index)
            early = not side.query()
            accelerator.synchronize()
            check.that(not early, f"round {number}: {name} of device {other} did not wait for device {index}")
            # Without work there is nothing to wait for.
            left = int((part.target.cpu() != numbers(HOST)).sum())
            check.equal(left, 0, f"round {number}: elements that device {index} has not written")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


def _check_made_for(accelerator, check, index) -> None:
    """Check the device of streams that are made for a device which is not the current one."""
    name = accelerator.device_name(index)
    for spelled in (name, torch.device(name)):
        try:
            made = accelerator.Stream(device=spelled)
        except TypeError:  # a class of a vendor's own need not take a device
            return
        if isinstance(found := getattr(made, "device", None), torch.device) and found.index is not None:
            check.equal(found.index, index, f"the device of a stream that was made for {spelled!r}")


@case("accelerator.pairs.threads", requires=[STREAM])
def test_threads(accelerator, check):
    """A thread's current device and stream are its own: another thread's choice changes neither."""
    last = len(_devices(accelerator)) - 1
    before = accelerator.current_device()
    seen, chosen, looked = {}, threading.Event(), threading.Event()

    def choose():
        try:
            accelerator.set_device(last)
            with accelerator.stream(accelerator.Stream()):
                seen["device"], seen["stream"] = accelerator.current_device(), accelerator.current_stream()
                chosen.set()
                looked.wait()
        except Exception as error:  # it is the case's own, and raised below
            seen["error"] = error
        finally:
            chosen.set()

    thread = threading.Thread(target=choose)
    try:
        accelerator.set_device(last)
        there = accelerator.current_stream()
        accelerator.set_device(0)
        here = accelerator.current_stream()
        thread.start()
        chosen.wait()
        if "error" in seen:
            raise seen["error"]
        check.equal(seen.get("device"), last, "the device that the other thread has chosen for itself")
        check.equal(accelerator.current_device(), 0, "the current device after another thread has chosen one")
        check.that(accelerator.current_stream() == here, "another thread has changed the stream of this one")
        accelerator.set_device(last)
        check.that(accelerator.current_stream() == there, "another thread's stream is current in this thread")
        check.that(seen["stream"] != there, "the other thread did not enter its stream")
    finally:
        looked.set()
        if thread.ident:
            thread.join()
        accelerator.set_device(before)


@case("accelerator.pairs.counters", requires=[MEMORY_STATS])
def test_counters(accelerator, check):
    """On each device, in two threads, allocated memory and its peak follow each of many tensors and fall back."""

    def on_device(index):
        name = accelerator.device_name(index)
        gc.collect()
        accelerator.synchronize()
        others = [at for at in _devices(accelerator) if at != index]
        before, beside = accelerator.memory_allocated(index), [accelerator.memory_allocated(at) for at in others]
        for number in range(ROUNDS):
            accelerator.reset_peak_memory_stats(index)
            kept = torch.zeros(BLOCK, dtype=torch.uint8, device=name)
            temporary = torch.zeros(BLOCK, dtype=torch.uint8, device=name)
            del temporary
            during, peak = accelerator.memory_allocated(index), accelerator.max_memory_allocated(index)
            reserved = accelerator.memory_reserved(index)
            del kept
            accelerator.synchronize()
            after = accelerator.memory_allocated(index)
            where = f"round {number} on device {index}"
            check.that(during - before >= BLOCK, f"{where}: {BLOCK} bytes raised memory by {during - before}")
            check.that(during - before < 2 * BLOCK, f"{where}: freed memory is still counted, {during - before} bytes")
            check.that(peak - before >= 2 * BLOCK, f"{where}: the peak of two tensors is {peak - before} bytes")
            check.that(peak - before < 4 * BLOCK, f"{where}: the peak of two tensors is {peak - before} bytes")
            check.that(reserved >= during, f"{where}: {reserved} bytes are reserved, and {during} are allocated")
            check.equal(after, before, f"{where}: allocated bytes after all was freed")
            accelerator.reset_peak_memory_stats(index)
            left = accelerator.max_memory_allocated(index)
            check.that(left - before < BLOCK, f"{where}: the peak after a reset is {left - before} bytes")
        check.equal([accelerator.memory_allocated(at) for at in others], beside, "allocated bytes of other devices")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.values", requires=[MEMORY_STATS])
def test_values(accelerator, check):
    """On each device, in two threads, many tensors that live at once keep their own values."""

    def on_device(index):
        name = accelerator.device_name(index)
        kept = [torch.full((BLOCK // 64,), float(number), device=name) for number in range(2 * ROUNDS)]
        for number, tensor in enumerate(kept):
            check.that(bool((tensor.cpu() == number).all()), f"tensor {number} on device {index} has another's values")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.reuse", requires=[STREAM, MEMORY_STATS])
def test_reuse(accelerator, check):
    """Memory that one stream has freed is not given to another stream before the first one's work is done."""

    def on_device(index):
        target = torch.device(accelerator.device_name(index))
        conveyor, source = Conveyor(accelerator, target, milliseconds=1.0), numbers(target)
        for number in range(ROUNDS):
            first, second = accelerator.Stream(), accelerator.Stream()
            accelerator.synchronize()
            with accelerator.stream(first):
                temporary = torch.full_like(source, -1.0)
                conveyor.carry(source, temporary)
                copy = temporary + 0.0
                del temporary
            with accelerator.stream(second):
                for _ in range(3):
                    torch.full_like(source, -9.0)
            accelerator.synchronize()
            left = int((copy.cpu() != numbers(HOST)).sum())
            check.equal(left, 0, f"round {number} on device {index}: elements overwritten by another stream")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.elapsed", requires=[STREAM, EVENT_TIMING])
def test_elapsed(accelerator, check):
    """On each device, in two threads, the time between two events is positive and fits into the host's time."""

    def on_device(index):
        target = torch.device(accelerator.device_name(index))
        conveyor, source = Conveyor(accelerator, target, milliseconds=1.0), numbers(target)
        arrived = torch.empty_like(source)
        for kind, number in itertools.product(("default", "side"), range(ROUNDS)):
            stream = accelerator.default_stream() if kind == "default" else accelerator.Stream()
            before, after = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
            accelerator.synchronize()
            started = time.perf_counter()
            with accelerator.stream(stream):
                before.record(stream)
                conveyor.carry(source, arrived)
                after.record(stream)
            after.synchronize()
            wall = (time.perf_counter() - started) * 1000
            found = before.elapsed_time(after)
            where = f"round {number} on the {kind} stream of device {index} in {threading.current_thread().name}"
            check.that(found > 0, f"{where}: {found} ms between two events with work between them")
            check.that(found <= 2 * wall + 1, f"{where}: {found:.3f} ms between two events, and {wall:.3f} ms in all")
            check.equal(arrived.cpu(), numbers(HOST), f"{where}: the work between the events")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.recorded", requires=[STREAM_RECORD])
def test_recorded(accelerator, check):
    """On each device, in two threads, memory that a side stream has recorded stays until that stream has read it."""

    def on_device(index):
        target = torch.device(accelerator.device_name(index))
        conveyor, late = Conveyor(accelerator, target, milliseconds=1.0), torch.empty(SIDE, SIDE, device=target)
        for number in range(ROUNDS):
            side, source, read = accelerator.Stream(), numbers(target, number), torch.zeros(SIDE, SIDE, device=target)
            accelerator.synchronize()
            with accelerator.stream(side):
                conveyor.carry(late, late)  # the host frees the tensor before the stream reads it
                read.copy_(source)
            source.record_stream(side)
            del source
            others = overwrite(target)
            side.synchronize()
            where = f"round {number} on device {index} in {threading.current_thread().name}"
            check.equal(read.cpu(), numbers(HOST, number), f"{where}: what the side stream has read")
            kept = all(bool((tensor.cpu() == -7).all()) for tensor in others)
            check.that(kept, f"{where}: a tensor that was made later has other values")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.generators", requires=[RNG_STATE, RNG_PER_DEVICE])
def test_generators(accelerator, check):
    """On each device, in two threads, seeds and states repeat draws, draws advance, and other devices do not."""

    def draw(index):
        name = accelerator.device_name(index)
        ones = torch.ones(257, device=name)
        return [torch.rand(9, device=name).cpu().tolist(), torch.nn.functional.dropout(ones).cpu().tolist(),
                torch.randperm(257, device=name).cpu().tolist()]  # fmt: skip

    def on_device(index):
        others = [at for at in _devices(accelerator) if at != index]
        for number in range(ROUNDS):
            beside = [accelerator.get_rng_state(at) for at in others]
            host = torch.get_rng_state()
            accelerator.manual_seed(number)
            state = accelerator.get_rng_state(index)
            first, second = draw(index), draw(index)
            accelerator.set_rng_state(state, index)
            third = draw(index)
            accelerator.manual_seed(number)
            fourth = draw(index)
            where = f"round {number} on device {index}"
            check.that(all(a != b for a, b in zip(first, second, strict=True)), f"{where}: two draws are alike")
            check.equal(third, first, f"{where}: draws after the state was put back")
            check.equal(fourth, first, f"{where}: draws after the same seed")
            check.equal(torch.get_rng_state(), host, f"{where}: the state of the host's generator")
            for at, kept in zip(others, beside, strict=True):
                check.equal(accelerator.get_rng_state(at), kept, f"{where}: the state of device {at}")

    _in_two_threads(lambda: _on_each_device(accelerator, on_device))


@case("accelerator.pairs.graphs", requires=[GRAPH_CAPTURE])
def test_graphs(accelerator, check):
    """On each device, several graphs run nothing at capture, and each replay uses the inputs as they are then."""

    def on_device(index):
        name = accelerator.device_name(index)
        for number in range(ROUNDS):
            source, total = torch.ones(9, device=name), torch.zeros(9, device=name)
            total.add_(source)
            total.zero_()
            accelerator.synchronize()
            graph = accelerator.create_graph()
            with accelerator.capture_to_graph(graph):
                total.add_(source)
            accelerator.synchronize()
            where = f"graph {number} on device {index}"
            check.equal(total.cpu(), torch.zeros(9), f"{where}: the total after the capture")
            for value in (3.0, 5.0, 7.0):
                source.fill_(value)
                accelerator.replay_graph(graph)
            accelerator.synchronize()
            check.equal(total.cpu(), torch.full((9,), 15.0), f"{where}: the total after three replays")

    _on_each_device(accelerator, on_device)


#: Members that only answer or wait. Whether they work at all is asked by other cases.
ANSWERS = (
    "available_memory", "communication_backend_name", "current_device", "current_device_name", "current_stream",
    "default_stream", "device_count", "device_name", "empty_cache", "get_rng_state", "initial_seed", "is_available",
    "is_bf16_supported", "is_fp16_supported", "max_memory_allocated", "max_memory_cached", "max_memory_reserved",
    "memory_allocated", "memory_cached", "memory_reserved", "memory_stats", "reset_peak_memory_stats",
    "supported_dtypes", "synchronize", "total_memory",
)  # fmt: skip
#: Members of torch's module of the device that only answer. An accelerator need not call them.
MODULE_ANSWERS = ("get_device_capability", "get_device_name", "get_device_properties", "is_initialized", "mem_get_info")


def _modes(accelerator, device) -> dict[str, object]:
    """Return the modes of this thread that a call must not leave changed."""
    modes = {
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        # PyTorch raises where it does not know the device type for autocast.
        "autocast": torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type),
        "the host's generator": torch.get_rng_state().tolist(),
    }
    with contextlib.suppress(Exception):
        modes["the current device"] = accelerator.current_device()
        modes["the current stream"] = accelerator.current_stream()
    return modes


@case("accelerator.pairs.modes", requires=[DEVICE])
def test_modes(accelerator, device, check):
    """A member that only answers or waits, of any device, leaves the modes of its thread and the host's generator."""
    indices = range(accelerator.device_count())
    asked = [(accelerator, member) for member in ANSWERS]
    asked += [(getattr(torch, device.type, None), member) for member in MODULE_ANSWERS]

    def with_device(current):
        for owner, member in asked:
            before = _modes(accelerator, device)
            for arguments in [()] * 3 + [(index,) for index in indices]:
                with contextlib.suppress(Exception):
                    getattr(owner, member)(*arguments)
                after = _modes(accelerator, device)
                changed = [name for name in before if before[name] != after.get(name)]
                check.equal(changed, [], f"modes that {member}{arguments} has changed, device {current} current")
                if "the current device" in changed:
                    accelerator.set_device(current)
            kept = torch.arange(1.0, 6.0).to(device).cpu()
            check.equal(kept, torch.arange(1.0, 6.0), f"a tensor that is moved after {member}()")

    if len(indices) > 1:
        _on_each_device(accelerator, with_device)
    else:
        with_device(0)

"""Streams and waiting by ``torch.accelerator``."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch

from conformance.accelerators.capabilities import (
    DEVICE_MULTIPLE,
    EVENT,
    EVENT_TIMING,
    STREAM,
    SYNCHRONIZE,
    TORCH_ACCELERATOR,
)
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import case
from conformance.suites.accelerator.conveyor import Conveyor, numbers, stale

from .members import check_refuses_others, indices, member, names_of, selected, used_device


def _left_undone(device: torch.device, target: torch.Tensor) -> int:
    """Return how many elements are missing for a reader on a new stream, which waits for no other stream."""
    with torch.Stream(device=device):
        return stale(target)


@case("torch_accelerator.current_stream", requires=[TORCH_ACCELERATOR, STREAM])
def test_current_stream(accelerator, device):
    """current_stream() is the stream that was entered, of the device asked for, and the one before it afterwards."""
    current = member("current_stream")
    for index in indices(accelerator):
        there = torch.device(device.type, index)
        with selected(accelerator, device, index):
            before, side = current(), torch.Stream(device=there)
            assert before == accelerator.current_stream(), f"current_stream() is {before}, not the vendor's"
            assert before != side, f"current_stream() is {side}, which nobody has entered"
            with side:
                for way, spelled in {"None": None, **names_of(device, index)}.items():
                    assert current(spelled) == side, (
                        f"current_stream() is {current(spelled)} for device {index} as {way}, and {side} was entered"
                    )
                for away in (other for other in indices(accelerator) if other != index):
                    assert current(away).device_index == away, f"current_stream({away}) is {current(away)}"
            assert current() == before, f"current_stream() stays {current()} after the context"
    check_refuses_others("current_stream", current)


def _streams(accelerator: Any, device: torch.device) -> dict[str, tuple[Any, Any]]:
    """Return streams of both interfaces by name, each with the context in which it is current."""
    side, other, none = accelerator.Stream(), torch.Stream(device=device), contextlib.nullcontext()
    return {
        "the vendor's current stream": (accelerator.current_stream(), none),
        "the current stream of torch.accelerator": (member("current_stream")(), none),
        "a stream of the vendor": (side, accelerator.stream(side)),
        "a torch.Stream": (other, other),
    }


@case("torch_accelerator.events", requires=[TORCH_ACCELERATOR, STREAM, EVENT])
def test_events(accelerator, declaration, check, device):
    """Events of the vendor and of torch.Event are recorded in, and waited for by, streams of both interfaces."""
    options = {"enable_timing": True} if declaration.supports(EVENT_TIMING.cell) else {}
    events = {
        "an event of the vendor": lambda: accelerator.Event(**options),
        "a torch.Event": lambda: torch.Event(device=device, **options),
    }
    # A pause of the host would hide a wait that is left out, so the work is several milliseconds long.
    conveyor, source = Conveyor(accelerator, device, milliseconds=3.0), numbers(device)
    for (kind, made), (where, there) in itertools.product(events.items(), itertools.permutations(range(4), 2)):
        streams = list(_streams(accelerator, device).items())
        (name, (stream, entered)), (reader_name, (reader, reading)) = streams[where], streams[there]
        start, end, target = made(), made(), torch.full_like(source, -1.0)
        accelerator.synchronize()
        with entered:
            start.record(stream)
            conveyor.carry(source, target)
            end.record(stream)
        end.wait(reader)
        with reading:
            missing = stale(target + 0)
        label = f"{kind}, recorded in {name}"
        check.that(not missing, f"{reader_name} waited for {label}, and read {missing} elements too early")
        end.synchronize()
        check.that(end.query() is True, f"query() of {label} is {end.query()!r} after synchronize()")
        if options:
            elapsed = start.elapsed_time(end)
            check.that(elapsed > 0, f"work between two of {label} takes {elapsed} ms")


@case("torch_accelerator.wait_stream", requires=[TORCH_ACCELERATOR, STREAM])
def test_wait_stream(accelerator, check, device):
    """A stream of each interface waits for the work of a stream of the other one."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=3.0), numbers(device)
    for where, there in itertools.permutations(range(4), 2):
        streams = list(_streams(accelerator, device).items())
        (name, (stream, entered)), (reader_name, (reader, reading)) = streams[where], streams[there]
        target = torch.full_like(source, -1.0)
        accelerator.synchronize()
        with entered:
            conveyor.carry(source, target)
        reader.wait_stream(stream)
        with reading:
            missing = stale(target + 0)
        check.that(not missing, f"{reader_name} waited for {name}, and read {missing} elements too early")
    accelerator.synchronize()


@case("torch_accelerator.set_stream", requires=[TORCH_ACCELERATOR, STREAM])
def test_set_stream(accelerator, device):
    """After set_stream() work runs on that stream: synchronize() of it alone completes the work."""
    select, home, side = member("set_stream"), accelerator.current_stream(), torch.Stream(device=device)
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)
    accelerator.synchronize()
    try:
        answer = select(side)
        conveyor.carry(source, target)
        side.synchronize()
        undone, entered = _left_undone(device, target), accelerator.current_stream()
    finally:
        select(home)
        accelerator.synchronize()

    assert answer is None, f"set_stream() returned {answer!r}; it must return None"
    if entered == home:
        stub(f"set_stream() has no effect: {home} stays current")
    assert entered == side, f"after set_stream({side}) the current stream is {entered}"
    assert not undone, f"after synchronize() of the stream that was set, {undone} elements had not arrived"
    assert accelerator.current_stream() == home, f"set_stream({home}) leaves {accelerator.current_stream()} current"


@case("torch_accelerator.set_stream_device", requires=[TORCH_ACCELERATOR, STREAM, DEVICE_MULTIPLE])
def test_set_stream_device(accelerator, device):
    """set_stream() makes the device of the stream current too, as PyTorch promises."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    select, home = member("set_stream"), used_device(device)
    away = 1 - home
    before = {index: accelerator.current_stream(index) for index in (home, away)}
    try:
        select(torch.Stream(device=torch.device(device.type, away)))
        found = used_device(device)
    finally:
        for index in (away, home):
            select(before[index])
        accelerator.set_device(home)

    assert found == away, f"set_stream() of a stream on device {away} leaves device {found} current"


@case("torch_accelerator.synchronize", requires=[TORCH_ACCELERATOR, SYNCHRONIZE])
def test_synchronize(accelerator, device):
    """synchronize() completes the work of all streams, with the device as a number, a torch.device and a string."""
    wait = member("synchronize")
    for index in indices(accelerator):
        there = torch.device(device.type, index)
        with selected(accelerator, device, index):
            conveyor, source = Conveyor(accelerator, there, milliseconds=5.0), numbers(there)
            aside = torch.Stream(device=there) if accelerator.Stream is not None else None
            for way, spelled in {"None": None, **names_of(device, index)}.items():
                target = torch.full_like(source, -1.0)
                accelerator.synchronize()
                with accelerator.stream(aside):
                    conveyor.carry(source, target)
                answer = wait(spelled)
                undone = stale(target) if aside is None else _left_undone(there, target)
                assert answer is None, f"synchronize() returned {answer!r}; it must return None"
                assert not undone, f"synchronize() with device {index} as {way} left {undone} elements undone"
    check_refuses_others("synchronize", wait)


@case("torch_accelerator.synchronize_away", requires=[TORCH_ACCELERATOR, SYNCHRONIZE, STREAM, DEVICE_MULTIPLE])
def test_synchronize_away(accelerator, device):
    """synchronize(index) completes the work of a device that is not current, which does not become current."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    wait, home = member("synchronize"), used_device(device)
    there = torch.device(device.type, 1 - home)
    with selected(accelerator, device, 1 - home):
        conveyor, source = Conveyor(accelerator, there), numbers(there)
        target, side = torch.full_like(source, -1.0), torch.Stream(device=there)
        accelerator.synchronize()
        with side:
            conveyor.carry(source, target)
    assert used_device(device) == home

    wait(1 - home)
    current, undone = used_device(device), _left_undone(there, target)

    assert current == home, f"synchronize({1 - home}) made device {current} current"
    assert not undone, f"synchronize({1 - home}) left {undone} elements of device {1 - home} undone"

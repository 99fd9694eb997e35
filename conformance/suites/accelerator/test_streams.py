"""Streams: the context that enters one, and the order of work on one stream."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch

from conformance.accelerators.capabilities import DEVICE, STREAM
from conformance.judging.finding import environment_lacks, require, stub
from conformance.plan.case import Level, case

from .conveyor import HOST, Conveyor, numbers, stale


class Stop(Exception):
    """Exception that a case raises on purpose."""


@case("accelerator.stream.none_is_consistent", requires=[DEVICE], level=Level.CORE)
def test_none_is_consistent(accelerator):
    """The stream class, the current stream and the default stream are all present or all None."""
    answers = {
        "Stream": accelerator.Stream,
        "current_stream()": accelerator.current_stream(),
        "default_stream()": accelerator.default_stream(),
    }
    missing = [call for call, answer in answers.items() if answer is None]

    if missing and len(missing) < len(answers):
        stub(f"{' and '.join(missing)} is None, but {' and '.join(answers.keys() - set(missing))} is not")


@case("accelerator.stream.context_of_none", requires=[DEVICE], level=Level.CORE)
def test_context_of_none(accelerator, device):
    """stream(None) and stream(current_stream()) change nothing and let exceptions through."""
    before = accelerator.current_stream()

    for stream in (None, accelerator.current_stream()):
        with accelerator.stream(stream):
            inside = (numbers(device) + 1).cpu()
            assert accelerator.current_stream() == before, f"stream({stream!r}) changed the current stream"
        assert torch.equal(inside, numbers(HOST) + 1), f"results inside stream({stream!r}) are wrong"
        with pytest.raises(Stop), accelerator.stream(stream):
            raise Stop
    assert accelerator.current_stream() == before


@case("accelerator.stream.nest", requires=[STREAM])
def test_nest(accelerator):
    """Stream contexts nest, and leaving one restores the stream that was current before it."""
    before, outer, inner = accelerator.current_stream(), accelerator.Stream(), accelerator.Stream()

    with require(accelerator.stream(outer), "the context of a stream"):
        if accelerator.current_stream() == before:
            stub("stream() has no effect: the current stream is the same inside the context")
        assert accelerator.current_stream() == outer, "inside the context the entered stream is not current"
        with accelerator.stream(inner):
            assert accelerator.current_stream() == inner, "inside the inner context the inner stream is not current"
        assert accelerator.current_stream() == outer, "leaving the inner stream did not restore the outer stream"
        with accelerator.stream(None):
            assert accelerator.current_stream() == outer, "stream(None) changed the current stream"
    assert accelerator.current_stream() == before, "leaving the outer stream did not restore the first stream"


@case("accelerator.stream.restored_on_exception", requires=[STREAM])
def test_restored_on_exception(accelerator):
    """After an exception inside a stream context, the previous stream is current again."""
    before, side = accelerator.current_stream(), accelerator.Stream()

    with pytest.raises(Stop), accelerator.stream(side):
        raise Stop
    after = accelerator.current_stream()
    if after != before:
        accelerator.stream(before).__enter__()  # otherwise later cases run on the side stream

    assert after == before, "after an exception the side stream is still current"


@case("accelerator.stream.distinct", requires=[STREAM])
def test_distinct(accelerator):
    """New streams differ from each other and from the default stream, and a stream equals itself."""
    first, second, default = accelerator.Stream(), accelerator.Stream(), accelerator.default_stream()

    assert first == first and default == accelerator.default_stream()
    assert first != second, "two new streams compare equal"
    assert first != default and second != default, "a new stream equals the default stream"


@case("accelerator.stream.default_is_current", requires=[STREAM])
def test_default_is_current(accelerator):
    """The default stream is current until another is entered, and entering one does not change it."""
    default = accelerator.default_stream()

    assert accelerator.current_stream() == default, "the current stream is not the default stream"
    with accelerator.stream(accelerator.Stream()):
        assert accelerator.default_stream() == default, "entering a stream changes the default stream"
    assert accelerator.default_stream(accelerator.current_device()) == default
    assert accelerator.current_stream(accelerator.current_device()) == default


@case("accelerator.stream.query", requires=[STREAM])
def test_query(accelerator, device):
    """query() returns a bool, and returns True only when the stream's work is complete."""
    conveyor, source, side = Conveyor(accelerator, device), numbers(device), accelerator.Stream()
    target = torch.full_like(source, -1.0)
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
    answers = [side.query()]
    # A fast device may have finished already, so False is not required; only an early True is wrong.
    if answers[0]:
        assert stale(target) == 0, f"query() is True while {stale(target)} elements are stale"
    side.synchronize()
    answers.append(side.query())

    assert all(type(answer) is bool for answer in answers), f"query() returned {answers}; it must return a bool"
    assert answers[1], "query() is False after stream.synchronize()"
    assert stale(target) == 0
    if accelerator.device_count() > 1:
        _check_query_from_another_device(accelerator, device)


def _check_query_from_another_device(accelerator, device):
    """Check query() of a device's current stream, which is its default one, while another device is current."""
    home = accelerator.current_device()
    away = (home + 1) % accelerator.device_count()
    there = torch.device(device.type, away)
    accelerator.set_device(away)
    try:
        conveyor, source, side = Conveyor(accelerator, there), numbers(there), accelerator.Stream()
        target = torch.full_like(source, -1.0)
        accelerator.synchronize()
        conveyor.carry(source, target)
        stream = accelerator.current_stream(away)
        accelerator.set_device(home)
        answer = stream.query()
        accelerator.set_device(away)
        with accelerator.stream(side):
            left = stale(target)
    finally:
        accelerator.set_device(home)
    assert not (answer and left), (
        f"query() of the current stream of device {away} is True while device {home} is current and {left} elements "
        "are stale"
    )


@case("accelerator.stream.program_order", requires=[STREAM])
def test_program_order(accelerator, device):
    """Work on one stream runs in the order it was queued."""
    conveyor, side = Conveyor(accelerator, device, milliseconds=5.0), accelerator.Stream()
    sources = [numbers(device, start) for start in range(5)]
    target, copies = torch.full_like(sources[0], -1.0), [torch.empty_like(sources[0]) for _ in sources]
    accelerator.synchronize()

    with accelerator.stream(side):
        for source, copy in zip(sources, copies, strict=True):
            conveyor.carry(source, target)
            copy.copy_(target)
    side.synchronize()

    for start, copy in enumerate(copies):
        assert stale(copy, start) == 0, f"step {start} read {stale(copy, start)} elements of another step"


@case("accelerator.stream.device_synchronize", requires=[STREAM])
def test_device_synchronize(accelerator, device):
    """synchronize() of the device completes the work of every stream."""
    conveyor, streams = Conveyor(accelerator, device), [accelerator.Stream() for _ in range(3)]
    sources = [numbers(device, start) for start in range(3)]
    targets = [torch.full_like(source, -1.0) for source in sources]
    accelerator.synchronize()

    for stream, source, target in zip(streams, sources, targets, strict=True):
        with accelerator.stream(stream):
            conveyor.carry(source, target)
    accelerator.synchronize()

    if not any(stream.query() for stream in streams):
        stub("synchronize() has no effect: work that was queued before the call is still running")
    for start, target in enumerate(targets):
        assert stale(target, start) == 0, f"stream {start} is not complete after synchronize()"


def _current(accelerator) -> dict[str, object]:
    """Return the current device, and the current stream of each device."""
    streams = {f"the current stream of device {at}": accelerator.current_stream(at) for at in _some(accelerator)}
    return {"the current device": accelerator.current_device(), **streams}


def _some(accelerator) -> range:
    return range(min(3, accelerator.device_count()))


def _streams(accelerator) -> list:
    """Return a new stream of each device, and leave the current device as it was."""
    before, made = accelerator.current_device(), []
    try:
        for index in _some(accelerator):
            accelerator.set_device(index)
            made.append(accelerator.Stream())
    finally:
        accelerator.set_device(before)
    return made


def _put_back(accelerator, kept) -> None:
    """Enter again what was current: otherwise later cases run on another stream."""
    for index in _some(accelerator):
        stream = kept[f"the current stream of device {index}"]
        if accelerator.current_stream(index) != stream:
            accelerator.set_device(index)
            accelerator.stream(stream).__enter__()
    accelerator.set_device(kept["the current device"])


def _contexts(accelerator, device, streams, at) -> dict:
    """Return contexts that set a stream of device ``at``, or that device, as functions that enter and leave them."""

    def within(*contexts):
        def run():
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())

        return run

    def raising(context):
        def run():
            with contextlib.suppress(Stop), context():
                raise Stop

        return run

    entries = [lambda stream=stream: accelerator.stream(stream) for stream in streams]
    ways = {
        "stream()": within(entries[at]),
        "stream() with an exception": raising(entries[at]),
        "stream() in stream() of each device": within(*entries, entries[at]),
    }
    chosen = getattr(torch.accelerator, "current_accelerator", lambda: None)()
    if chosen is not None and chosen.type == device.type and hasattr(torch.accelerator, "device_index"):
        ways["torch.accelerator.device_index()"] = within(lambda: torch.accelerator.device_index(at))
        ways["stream() in torch.accelerator.device_index()"] = within(
            lambda: torch.accelerator.device_index(at), entries[at - 1]
        )
    return ways


@case("accelerator.stream.per_device", requires=[STREAM])
def test_per_device(accelerator, device):
    """A stream context changes one device's current stream, and restores it and the current device at its end."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    here, there = accelerator.current_stream(0), accelerator.current_stream(1)
    before = accelerator.current_device()
    try:
        accelerator.set_device(1)
        side = accelerator.Stream()
        with accelerator.stream(side):
            assert accelerator.current_stream(0) == here, (
                "entering a stream of device 1 changed the current stream of device 0"
            )
            assert accelerator.current_stream(1) != there, "the entered stream is not current on its device"
            accelerator.set_device(0)
            assert accelerator.current_stream(1) == side, (
                "current_stream(1) is another stream than the entered one while device 0 is current"
            )
            accelerator.set_device(1)
        accelerator.set_device(0)
        with accelerator.stream(side):
            found = accelerator.current_device()
        assert found == 1, f"in the context of a stream of device 1, device {found} is current"
    finally:
        accelerator.set_device(before)
    assert accelerator.current_stream(1) == there

    streams = _streams(accelerator)
    first = _current(accelerator)
    try:
        for now, at in itertools.product(_some(accelerator), repeat=2):
            for name, enter_and_leave in _contexts(accelerator, device, streams, at).items():
                accelerator.set_device(now)
                kept = _current(accelerator)
                enter_and_leave()
                after = _current(accelerator)
                changed = {what: after[what] for what in kept if kept[what] != after[what]}
                assert not changed, f"device {now} was current; after {name} of device {at}, {changed} is left"
    finally:
        _put_back(accelerator, first)


@case("accelerator.stream.program_order_without", requires=[DEVICE], level=Level.CORE)
def test_program_order_without(accelerator, device):
    """Operations on the current stream see all work queued before them, also in-place work."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.full_like(source, -1.0)

    conveyor.carry(source, target)
    first = target + 0
    # An in-place write that ran early would show in ``first``, a late one in ``second``.
    target.fill_(-5.0)
    second = target + 0

    assert stale(first) == 0, f"{stale(first)} elements were read before the copy or after the fill"
    assert bool((second.cpu() == -5.0).all()), "an operation ran before the operation queued ahead of it"

"""A wrong or missing wait gives a wrong answer, every time."""

from __future__ import annotations

import time
from typing import Any

import torch


def poisoned(tensor: torch.Tensor) -> bool:
    return bool(torch.isnan(tensor.cpu()).all())


def values(tensor: torch.Tensor) -> set[float]:
    return set(tensor.cpu().tolist())


def on_side_stream(sim: Any, factor: float) -> tuple[Any, torch.Tensor]:
    x = torch.ones(1000, device="sim")
    stream = sim.Stream()
    stream.wait_stream(sim.current_stream())
    with sim.stream(stream):
        return stream, x * factor


def test_side_work_is_hidden_from_the_host_until_it_is_ordered(sim: Any) -> None:
    _, y = on_side_stream(sim, 2)

    assert poisoned(y)


def test_side_stream_does_not_see_default_work_until_it_waits(sim: Any) -> None:
    x = torch.ones(1000, device="sim")
    with sim.stream(sim.Stream()):
        y = x * 2
    sim.synchronize()

    assert poisoned(y)


def test_wait_stream_orders(sim: Any) -> None:
    stream, y = on_side_stream(sim, 3)
    sim.current_stream().wait_stream(stream)

    assert values(y) == {3}


def test_event_orders_what_came_before_it_and_not_after(sim: Any) -> None:
    stream, y = on_side_stream(sim, 4)
    event = stream.record_event()
    with sim.stream(stream):
        z = torch.ones(10, device="sim") * 5
    sim.current_stream().wait_event(event)

    assert values(y) == {4}
    assert poisoned(z)


def test_stream_and_device_synchronize_show_the_work(sim: Any) -> None:
    stream, y = on_side_stream(sim, 5)
    stream.synchronize()
    assert values(y) == {5}

    _, y = on_side_stream(sim, 6)
    sim.synchronize()
    assert values(y) == {6}


def test_query_is_false_until_due_and_then_orders_the_host(sim: Any) -> None:
    stream, y = on_side_stream(sim, 7)
    event = stream.record_event()

    assert event.query() is False
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 100
    assert values(y) == {7}


def test_unordered_overwrite_spoils_the_work_that_reads(sim: Any) -> None:
    x = torch.ones(1000, device="sim")
    stream = sim.Stream()
    stream.wait_stream(sim.current_stream())
    with sim.stream(stream):
        y = x + 1
    x.fill_(9)
    sim.synchronize()

    assert poisoned(y)
    assert values(x) == {9}


def test_disjoint_parts_of_one_buffer_need_no_order(sim: Any) -> None:
    flat = torch.zeros(200, device="sim")
    stream = sim.Stream()
    stream.wait_stream(sim.current_stream())
    with sim.stream(stream):
        flat[:100].fill_(1)
    flat[100:].fill_(2)
    sim.current_stream().wait_stream(stream)

    assert flat.sum().item() == 300


def reuse(sim: Any, record: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A side stream uses memory that the default stream frees and gets again."""
    stream = sim.Stream()
    a = torch.full((5000,), 7.0, device="sim")
    stream.wait_stream(sim.current_stream())
    with sim.stream(stream):
        result = a + 1
    if record:
        a.record_stream(stream)
    del a
    b = torch.full((5000,), 9.0, device="sim")
    sim.current_stream().wait_stream(stream)
    return result, b


def test_freed_memory_in_use_by_another_stream_is_handed_out_again_poisoned(sim: Any) -> None:
    result, b = reuse(sim, record=False)

    assert poisoned(result)
    assert values(b) == {9}


def test_record_stream_keeps_it(sim: Any) -> None:
    result, b = reuse(sim, record=True)

    assert values(result) == {8}
    assert values(b) == {9}


def test_device_time_is_proportional_to_work(sim: Any) -> None:
    def measure(times: int) -> float:
        m = torch.ones(300, 300, device="sim")
        start, end = sim.Event(enable_timing=True), sim.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            m @ m
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    assert 1.9 < measure(20) / measure(10) < 2.1


def test_async_copy_from_the_device_arrives_with_the_synchronize(sim: Any) -> None:
    host = torch.zeros(100).pin_memory()
    host.copy_(torch.arange(100.0, device="sim"), non_blocking=True)

    assert torch.isnan(host).all()
    sim.synchronize()
    assert torch.equal(host, torch.arange(100.0))


def test_overwriting_the_pinned_source_of_a_copy_spoils_it(sim: Any) -> None:
    source = torch.ones(100).pin_memory()
    copied = source.to("sim", non_blocking=True)
    source.zero_()
    sim.synchronize()

    assert poisoned(copied)


def test_a_wait_of_microseconds_takes_microseconds(sim: Any) -> None:
    """A sleep takes 50 µs and more, whatever it was asked for. Every copy to the host waits."""
    x = torch.ones(4, device="sim")
    taken = []
    for _ in range(300):
        started = time.perf_counter()
        (x + 1).cpu()
        taken.append(time.perf_counter() - started)

    assert min(taken) < 50e-6  # the least of many does not depend on how busy the machine is

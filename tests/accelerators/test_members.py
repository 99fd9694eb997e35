"""Members of the device's module: what stands in for one that is missing, and which cases are about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from conformance.accelerators import members
from conformance.accelerators.interface import MissingMember


def _raises(*_: object) -> NoReturn:
    raise NotImplementedError("later")


def _waits_for_a_kernel(*_: object) -> Any:
    return torch.empty(1, device="meta").item()  # PyTorch's own code raises


def module(**functions: Any) -> SimpleNamespace:
    return SimpleNamespace(__name__="torch.quiet", **functions)


def test_a_function_that_is_not_there_is_replaced() -> None:
    for quiet in (module(), module(device_count=_raises)):
        assert members.answer(quiet, "device_count", instead=lambda: 3) == 3
        assert members.answer(quiet, "device_count", homes=(module(device_count=lambda: 2),)) == 2


@pytest.mark.parametrize(
    ("quiet", "said"),
    [
        (module(), "torch.quiet has no member 'device_count'"),
        (module(device_count=_raises), "torch.quiet.device_count() is not implemented: later"),
        (module(device_count=lambda: None), "torch.quiet.device_count() returns None"),
    ],
)
def test_what_is_missing_is_named(quiet: SimpleNamespace, said: str) -> None:
    with pytest.raises(MissingMember) as raised:
        members.answer(quiet, "device_count")

    assert (str(raised.value), raised.value.member) == (said, "device_count")


def test_a_wrong_answer_is_not_replaced() -> None:
    with pytest.raises(MissingMember, match="returns None"):
        members.answer(module(device_count=lambda: None), "device_count", instead=lambda: 3)


def test_a_class_whose_call_gives_none_is_named() -> None:
    class Event: ...

    assert members.maker(module(Event=Event), "Event") is Event
    assert members.maker(module(Event=lambda enable_timing: enable_timing), "Event")(enable_timing=True) is True
    with pytest.raises(MissingMember, match=r"torch.quiet.Event\(\) returns None"):
        members.maker(module(Event=lambda **_: None), "Event")(enable_timing=True)


@pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all", "set_rng_state", "reset_peak_memory_stats"])
def test_a_procedure_whose_body_is_empty_is_named_and_not_replaced(name: str) -> None:
    def documented(*_: object) -> None:
        """Do it."""

    kept: list[object] = []

    for function in (lambda *_: None, documented):
        with pytest.raises(MissingMember, match=rf"torch.quiet.{name}\(\) does nothing: its body is empty"):
            members.call(module(**{name: function}), name, 1, instead=lambda: 3)
    members.call(module(**{name: kept.append}), name, 1)
    members.call(module(**{name: lambda value: kept.append(value)}), name, 2)
    assert kept == [1, 2]
    assert members.call(module(empty_cache=lambda: None), "empty_cache") is None  # a device may have no cache


def test_functions_that_return_none_though_they_answer_are_found() -> None:
    quiet = module(synchronize=lambda: None, current_device=lambda: 0, get_rng_state=lambda: None, Event=_raises)

    assert (
        members.silent(quiet, ("synchronize", "current_device", "Event", "Stream", "get_rng_state")) == "get_rng_state"
    )
    assert not members.silent(quiet, ("synchronize", "current_device", "Event", "Stream"))
    assert members.silent(module(stream=lambda _: None, current_stream=lambda: 1), ["stream"]) == "stream"
    assert not members.silent(module(stream=lambda stream: stream, current_stream=lambda: 1), ["stream"])


def test_a_kernel_that_the_function_waits_for_is_no_missing_function() -> None:
    """A device that records operators refuses them when it is synchronized."""
    with pytest.raises((NotImplementedError, RuntimeError)) as raised:
        members.call(module(synchronize=_waits_for_a_kernel), "synchronize", instead=lambda: None)

    assert not isinstance(raised.value, MissingMember)


@pytest.mark.parametrize(
    ("member", "subjects", "case", "about"),
    [
        ("manual_seed_all", ["rng"], "accelerator.rng.seed_all_repeats", True),
        ("manual_seed_all", ["operators.rand"], "operators.rand[float32-inference]", False),
        ("get_rng_state", ["rng.state", "checkpoint"], "checkpoint.continued[device]", True),
        ("memory_allocated", ["device"], "accelerator.interface.int[memory_allocated]", True),
        ("memory_allocated", ["device"], "accelerator.interface.int[max_memory_allocated]", False),
        ("synchronize", ["graph.capture"], "accelerator.graph.order", False),
        ("Event", ["event.timing"], "accelerator.event.elapsed", True),
        ("no_such_member", ["rng"], "accelerator.rng.seed_repeats[rand]", None),
    ],
)
def test_a_case_is_about_the_members_that_its_capabilities_are_for(
    member: str, subjects: list[str], case: str, about: bool | None
) -> None:
    assert members.judges(member, subjects, case) is about

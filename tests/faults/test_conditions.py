"""Conditions of generated faults: each lets a fault act in some calls, and names what a call needs for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.faults import conditioned, conditions
from tests.faults.fault import Fault, Hits
from tests.faults.overloads import schema
from tests.faults.population import KINDS, families, kind_of


class Given:
    """A call of ``add.out`` whose kernel is PyTorch's own."""

    name = "aten::add.out"

    def __init__(self, left: torch.Tensor, right: torch.Tensor, alpha: float = 1) -> None:
        out = torch.empty(torch.broadcast_shapes(left.shape, right.shape), dtype=left.dtype)
        self.values, self.arguments = [left, right, alpha, out], list(schema(self.name).arguments)
        self.schema = schema(self.name)

    def run(self, values: Any = None) -> torch.Tensor:
        """Return the sum."""
        left, right, alpha, out = values or self.values
        return torch.add(left, right, alpha=alpha, out=out)


def acts(fault: Fault, *calls: Given) -> list[bool]:
    """Return in which of the calls a fault acts."""
    kind, hits, found = kind_of(fault), Hits(), []
    assert kind is not None
    behaviour = kind.behave(fault, hits)
    for call in calls:
        before = hits.count
        behaviour(call)  # type: ignore[arg-type]
        found.append(hits.count > before)
    return found


ONES = torch.ones(3)


def test_a_fault_of_one_dtype_acts_in_it_alone() -> None:
    fault = Fault("H", "last, in one dtype", "aten::add.out", "r0", " | float16")

    assert acts(fault, Given(ONES, ONES), Given(ONES.half(), ONES.half())) == [False, True]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("every 2", [False, True, False, True]),
        ("after 3", [False, False, False, True]),
        ("another shape", [False, False, True, False]),
        ("without gradients", [False] * 4),
    ],
)
def test_a_fault_of_a_sequence_acts_in_its_place(word: str, expected: list[bool]) -> None:
    fault = Fault("N", "last, in a sequence", "aten::add.out", "r0", f" | {word}")
    calls = [Given(values, values) for values in (torch.ones(3), torch.ones(3), torch.ones(4), torch.ones(4))]

    assert acts(fault, *calls) == expected


def test_a_stale_result_needs_a_call_before() -> None:
    fault = Fault("N", "stale, in a sequence", "aten::add.out", "r0", " | the same shape")

    assert acts(fault, Given(ONES, ONES), Given(ONES, ONES), Given(ONES, ONES)) == [False, False, True]


def test_a_fault_of_another_thread_acts_there() -> None:
    fault = Fault("O", "last, on another thread", "aten::add.out", "r0", " | another thread")
    found = acts(fault, Given(ONES, ONES))
    thread = threading.Thread(target=lambda: found.extend(acts(fault, Given(ONES, ONES))))
    thread.start()
    thread.join()

    assert found == [False, True]


def test_two_arguments_at_once() -> None:
    fault = Fault("P", "default, with another argument", "aten::add.out", "2", " | 1 strided")
    gaps = torch.ones(6)[::2]

    assert acts(fault, Given(ONES, ONES, 2), Given(ONES, gaps, 2), Given(ONES, gaps)) == [False, True, False]


def test_the_part_of_a_long_axis_is_not_read() -> None:
    fault = Fault("L", "input cut", "aten::add.out", "0", "last 8")
    long = torch.ones(300)

    assert acts(fault, Given(ONES, ONES), Given(long, long)) == [False, True]


def test_a_small_error_is_twice_what_is_permitted() -> None:
    fault = Fault("Q", "small error", "aten::add.out", "r0", "all in float32")
    kind, call = kind_of(fault), Given(ONES, ONES)
    assert kind is not None
    found = kind.behave(fault, Hits())(call)  # type: ignore[arg-type]

    assert not torch.allclose(found, torch.full((3,), 2.0), rtol=1.3e-6, atol=0)
    assert torch.allclose(found, torch.full((3,), 2.0), rtol=1e-5, atol=0)


def test_each_condition_has_a_family() -> None:
    assert set("HLNOPQR") <= set(families())
    assert all(name in conditioned.LINEAR for name in ("aten::mm.out", "aten::sum.IntList_out"))
    assert {kind.family for kind in KINDS.values()} >= set("HLNOPQR")
    assert conditions.ANOTHER_THREAD.needs("aten::add.out", "another thread", {}) is False

"""Faults are armed and disarmed in a running process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from conformance.accelerators.simulated.simulator import started
from conformance.base.errors import UnknownName
from tests.defects import faults
from tests.defects.faults import Fault, Where, armed, scaled, with_argument


def fault(**what: Any) -> Fault:
    return Fault("name", "family", "precedent", Where.OPERATOR, "case", **what)


def test_every_switch_of_the_core_is_described(sim: Any) -> None:
    assert set(started().core.switch_names()) == set(faults.SWITCHES)


def test_operator_fault_in_a_backward(sim: Any) -> None:
    x = torch.ones(5, device="sim", requires_grad=True)
    (right,) = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)
    with armed(fault(operators={"aten::gelu_backward": scaled(1.08)})):
        (wrong,) = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)

    torch.testing.assert_close(wrong, right * 1.08)


def test_fault_changes_an_argument(sim: Any) -> None:
    with armed(fault(operators={"aten::native_dropout": with_argument(1, lambda p: 1.0)})):
        out = torch.nn.functional.dropout(torch.ones(100, device="sim", requires_grad=True), 0.1)

    assert out.count_nonzero().item() == 0


@pytest.mark.parametrize("work", [lambda x: x + 1, lambda x: x.add_(1), lambda x: torch.add(x, 1, out=x.clone())])
def test_one_name_covers_the_variants_of_an_operator(sim: Any, work: Any) -> None:
    with armed(fault(operators={"aten::add": scaled(2)})):
        out = work(torch.ones(3, device="sim"))

    assert out.tolist() == [4, 4, 4]


def test_a_fault_of_one_overload_leaves_the_others_alone(sim: Any) -> None:
    with armed(fault(operators={"aten::clamp_min.out": scaled(2)})):
        by_number = torch.clamp_min(torch.ones(2, device="sim"), 3)
        by_tensor = torch.clamp_min(torch.ones(2, device="sim"), torch.full((2,), 3.0, device="sim"))

    assert (by_number.tolist(), by_tensor.tolist()) == ([6, 6], [3, 3])


def test_an_overload_without_a_name_is_called_default(sim: Any) -> None:
    with armed(fault(operators={"aten::native_dropout.default": scaled(3)})):
        out, _ = torch.native_dropout(torch.ones(2, device="sim"), 0.0, True)

    assert out.tolist() == [3, 3]


def test_undefined_tensors_pass_through_a_fault(sim: Any) -> None:
    """The backward of layer norm has undefined results where a gradient was not asked for."""
    x = torch.randn(3, 4, device="sim", requires_grad=True)
    with armed(fault(operators={"aten::native_layer_norm_backward": lambda call, args: call(args)})):
        (grad,) = torch.autograd.grad(torch.nn.functional.layer_norm(x, (4,)).square().sum(), x)

    (healthy,) = torch.autograd.grad(torch.nn.functional.layer_norm(x, (4,)).square().sum(), x)
    assert grad.tolist() == healthy.tolist()


def test_switches_and_members(sim: Any) -> None:
    broken = fault(switches={"item_truncates": 1}, members={"device_count": lambda old: lambda: old() + 5})
    with armed(broken):
        assert torch.tensor(2.75, device="sim").item() == 2
        assert sim.device_count() == 7

    assert torch.tensor(2.75, device="sim").item() == 2.75
    assert sim.device_count() == 2


def test_unknown_switch_is_an_error(sim: Any) -> None:
    with pytest.raises(UnknownName, match="event_query_true"), armed(fault(switches={"event_query_tru": 1})):
        pass


def test_missing_wait_is_visible_through_a_fault(sim: Any) -> None:
    stream = sim.Stream()
    with armed(fault(switches={"stream_wait_ignored": 1})):
        with sim.stream(stream):
            y = torch.ones(10, device="sim") * 2
        sim.current_stream().wait_stream(stream)
        assert torch.isnan(y.cpu()).all()


def test_counters_count_operators_and_host_copies(sim: Any) -> None:
    core = started().core
    x = torch.ones(10, device="sim")
    core.reset_counters()
    (x + x).cpu()

    assert core.counters()["ops"]["aten::add"] == 1
    assert core.counters()["device_to_host"] == 1


def test_a_context_is_entered_while_armed_and_left_when_arming_fails(sim: Any) -> None:
    inside: list[str] = []

    @contextmanager
    def context() -> Iterator[None]:
        inside.append("entered")
        try:
            yield
        finally:
            inside.append("left")

    with armed(fault(context=context)):
        assert inside == ["entered"]
    with pytest.raises(UnknownName), armed(fault(context=context), fault(switches={"no_such_switch": 1})):
        pass

    assert inside == ["entered", "left", "entered", "left"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"where_device": 1}, [0, 0, 1, 1]),
        ({"where_every": 2}, [0, 1, 0, 1]),
        ({"where_after": 3}, [0, 0, 0, 1]),
        ({"where_thread": 1}, [0, 0, 0, 0]),
    ],
)
def test_a_switch_acts_at_its_place_alone(sim: Any, where: dict[str, float], expected: list[int]) -> None:
    """Counters of live memory stay where the fault does not act."""
    found = []
    gc.collect()  # garbage of other tests would be freed under the fault
    with armed(fault(switches={"alloc_free_uncounted": 1, **where})):
        for index in (0, 0, 1, 1):
            before = torch.accelerator.memory_allocated(index)
            torch.empty(4096, device=f"sim:{index}")
            found.append(int(torch.accelerator.memory_allocated(index) > before))
        acted = started().core.switch_hits()

    assert found == expected
    assert acted == sum(expected)
    assert started().core.switch_hits() == 0

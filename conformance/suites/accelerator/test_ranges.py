"""Profiler ranges, and the answer of on_accelerator()."""

from __future__ import annotations

import pytest
import torch

from conformance.accelerators.capabilities import DEVICE, RANGES
from conformance.judging.finding import stub
from conformance.plan.case import Level, case


@case("accelerator.ranges.nest", requires=[RANGES])
def test_nest(accelerator, device):
    """Ranges nest and do not change results."""
    source = torch.arange(65.0, device=device)
    expected, opened = (torch.arange(65.0) * 2 + 1).tolist(), 0

    try:
        for depth in range(5):
            accelerator.range_push(f"depth {depth}")
            opened += 1
        inside = (source * 2 + 1).cpu().tolist()
    finally:
        for _ in range(opened):
            accelerator.range_pop()

    assert inside == expected, "a result inside ranges is wrong"


@case("accelerator.ranges.arguments", requires=[RANGES])
def test_arguments(accelerator, device):
    """Domain and category are accepted by position and by name, with any message text."""
    push_count = 0
    # Empty, long, not ASCII, of several lines, and with format characters.
    for message in ("", "x" * 5000, "größer – 大", "with\nline", "100 %s %d {}"):
        accelerator.range_push(message)
        accelerator.range_push(message, "domain", "category")
        accelerator.range_push(msg=message, domain="domain", category="category")
        push_count += 3
        accelerator.range_pop(domain="domain")
        accelerator.range_pop("domain")
        accelerator.range_pop()

    assert push_count == 15 and torch.ones(7, device=device).cpu().sum().item() == 7, (
        "the device is unusable after ranges"
    )


@case("accelerator.ranges.pop_without_push", requires=[RANGES])
def test_pop_without_push(accelerator, device):
    """Closing a range that is not open does not raise, and later ranges still work."""
    for _ in range(3):
        accelerator.range_pop()
    accelerator.range_push("after")
    accelerator.range_pop()

    assert torch.ones(7, device=device).cpu().sum().item() == 7, "the device is unusable after an unmatched range_pop()"


@case("accelerator.ranges.around_exceptions", requires=[RANGES])
def test_around_exceptions(accelerator, device):
    """Ranges still work after an exception between push and pop."""
    with pytest.raises(RuntimeError):
        accelerator.range_push("outer")
        torch.zeros(3, device=device).view(7)
    accelerator.range_pop()
    accelerator.range_push("next")
    accelerator.range_pop()

    assert torch.ones(7, device=device).cpu().sum().item() == 7


@case("accelerator.ranges.around_backward", requires=[RANGES])
def test_around_backward(accelerator, device):
    """Ranges inside a forward pass do not change its gradients."""
    source = torch.arange(1.0, 8.0, device=device, requires_grad=True)

    accelerator.range_push("forward")
    loss = (source * source).sum()
    accelerator.range_pop()
    accelerator.range_push("backward")
    loss.backward()
    accelerator.range_pop()

    assert source.grad.cpu().tolist() == [2.0 * number for number in range(1, 8)], (
        f"the gradient is {source.grad.cpu().tolist()}"
    )


@case("accelerator.on_accelerator.device_tensors", requires=[DEVICE], level=Level.CORE)
def test_on_accelerator(accelerator, device):
    """on_accelerator() is True for every kind of tensor on the device."""
    tensor = torch.zeros(4, 4, device=device)
    tensors = {
        "tensor": tensor,
        "view": tensor[1:, 2],
        "result": tensor + 1,
        "parameter": torch.nn.Parameter(tensor),
        "empty": torch.empty(0, device=device),
        "scalar": torch.zeros((), device=device),
        "integer": torch.zeros(3, dtype=torch.int64, device=device),
    }

    if not any(accelerator.on_accelerator(candidate) for candidate in tensors.values()):
        stub(f"on_accelerator() returned {accelerator.on_accelerator(tensor)!r} for every tensor on the device")
    for name, candidate in tensors.items():
        answer = accelerator.on_accelerator(candidate)
        assert answer is True, f"on_accelerator({name} on {candidate.device}) returned {answer!r}, not True"


@case("accelerator.on_accelerator.every_index", requires=[DEVICE], level=Level.CORE)
def test_on_accelerator_every_index(accelerator):
    """on_accelerator() is True for a tensor on any index, whichever device is current."""
    for index in range(accelerator.device_count()):
        tensor = torch.zeros(3, device=accelerator.device_name(index))
        assert accelerator.on_accelerator(tensor) is True, f"on_accelerator() is not True for {tensor.device}"


@case("accelerator.on_accelerator.elsewhere", requires=[DEVICE], level=Level.CORE)
def test_elsewhere(accelerator, device):
    """on_accelerator() is False for meta tensors, and for host tensors unless the device is the host."""
    meta, host = accelerator.on_accelerator(torch.zeros(3, device="meta")), accelerator.on_accelerator(torch.zeros(3))

    assert meta is False, f"on_accelerator(meta tensor) returned {meta!r}, not False"
    assert host is (device.type == "cpu"), (
        f"on_accelerator(host tensor) returned {host!r}; the device type is {device.type}"
    )


@case("accelerator.on_accelerator.after_moves", requires=[DEVICE], level=Level.CORE)
def test_after_moves(accelerator, device):
    """on_accelerator() follows a tensor that moves to the device and back."""
    host_answer = device.type == "cpu"
    tensor = torch.zeros(3)

    answers = [accelerator.on_accelerator(moved) for moved in (tensor, tensor.to(device), tensor.to(device).cpu())]

    assert answers == [host_answer, True, host_answer], (
        f"on the host, the device and the host again it returned {answers}"
    )

"""Page-locked host memory: values, views, is_pinned(), and copies that do not wait."""

from __future__ import annotations

import pytest
import torch

from conformance.accelerators.capabilities import COPY, MEMORY_PINNED, MEMORY_PINNED_ASYNC
from conformance.plan.case import Level, case
from conformance.suites.shared_bodies import (
    answers_of_is_pinned,
    wrong_after_copy_to_device,
    wrong_after_copy_to_host,
)

from .conveyor import HOST, Conveyor, numbers

DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)


@case("accelerator.pin.values", requires=[COPY], level=Level.CORE)
def test_values(accelerator, device):
    """pin_memory() returns a host tensor with the same values, shape and dtype and keeps its argument."""
    for dtype in DTYPES:
        source = (torch.arange(60) % 2 if dtype is torch.bool else torch.arange(60)).to(dtype).view(3, 4, 5)
        kept = source.clone()
        pinned = accelerator.pin_memory(source)
        assert isinstance(pinned, torch.Tensor), f"pin_memory() returned {pinned!r}; it must return a tensor"
        assert pinned.device.type == "cpu" and pinned.dtype is dtype, (
            f"pin_memory() of {dtype} returned {pinned.dtype} on {pinned.device}"
        )
        assert pinned.shape == source.shape, (
            f"pin_memory() changed the shape from {tuple(source.shape)} to {tuple(pinned.shape)}"
        )
        assert torch.equal(pinned, kept), f"pin_memory() changed values of {dtype}"
        assert torch.equal(source, kept), "pin_memory() changed its argument"
        assert torch.equal(pinned.to(device).cpu(), kept), f"a copy of pinned {dtype} to the device has other values"


@case("accelerator.pin.arguments", requires=[COPY], level=Level.CORE)
def test_arguments(accelerator, device):
    """pin_memory() accepts make_copy and match_shape by name and keeps size and dtype without a copy."""
    source = torch.arange(60.0).view(3, 4, 5)

    copied = accelerator.pin_memory(source, make_copy=True, match_shape=True)
    shaped = accelerator.pin_memory(source, make_copy=False, match_shape=True)
    sized = accelerator.pin_memory(source, make_copy=False, match_shape=False)

    assert torch.equal(copied.to(device).cpu(), source)
    assert shaped.shape == source.shape and shaped.dtype is source.dtype, f"{tuple(shaped.shape)} {shaped.dtype}"
    assert sized.numel() == source.numel() and sized.dtype is source.dtype, f"{sized.numel()} {sized.dtype}"


@case("accelerator.pin.pageable_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_pageable_is_not_pinned(accelerator):
    """is_pinned() is False for ordinary memory, its views, and empty tensors."""
    source = torch.arange(4096.0)
    accelerator.pin_memory(torch.arange(16.0))  # PyTorch asks the device only after its first use

    # A wrong True corrupts data: a non-blocking copy then reads memory that may already be changed or freed.
    for tensor in (source, source[7:], source.view(64, 64).t(), torch.empty(0), torch.zeros(())):
        assert accelerator.is_pinned(tensor) is False, (
            f"is_pinned(pageable) is {accelerator.is_pinned(tensor)!r}, not False"
        )


@case("accelerator.pin.no_data_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_no_data_is_not_pinned(accelerator):
    """is_pinned() is False for meta and fake tensors, which have no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(16)

    for tensor in (torch.empty(16, device="meta"), fake):
        answer = accelerator.is_pinned(tensor)
        assert answer is False, f"is_pinned({tensor.device} tensor without data) is {answer!r}, not False"


@case("accelerator.pin.device_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_device_is_not_pinned(accelerator, device):
    """is_pinned() is False for tensors on the device."""
    tensor = torch.zeros(4096, device=device)

    assert accelerator.is_pinned(tensor) is False, (
        f"is_pinned(tensor on {tensor.device}) is {accelerator.is_pinned(tensor)!r}, not False"
    )


@case("accelerator.pin.unpin", requires=[COPY], level=Level.CORE)
def test_unpin(accelerator, device):
    """unpin_memory() unpins the memory and returns True, or changes nothing and returns False or None."""
    pinned = accelerator.pin_memory(torch.arange(4096.0))
    was_pinned = accelerator.is_pinned(pinned)

    answer = accelerator.unpin_memory(pinned)

    assert answer in (True, False, None), f"unpin_memory() returned {answer!r}; it must return True, False or None"
    expected = False if answer else was_pinned
    assert accelerator.is_pinned(pinned) is expected, (
        f"unpin_memory() returned {answer}, but is_pinned() is {not expected}"
    )
    if not answer:
        assert torch.equal(pinned.to(device).cpu(), torch.arange(4096.0)), "unpin_memory() changed the values"


@case("accelerator.pin.is_pinned", requires=[MEMORY_PINNED])
def test_is_pinned(accelerator):
    """is_pinned() is True for the result of pin_memory(), also after pinning it twice, and False for its source."""
    source = torch.arange(4096.0)
    pinned = accelerator.pin_memory(source)

    assert accelerator.is_pinned(source) is False, f"is_pinned(pageable) is {accelerator.is_pinned(source)!r}"
    assert accelerator.is_pinned(pinned) is True, f"is_pinned(pin_memory(t)) is {accelerator.is_pinned(pinned)!r}"
    again = accelerator.pin_memory(pinned)
    assert accelerator.is_pinned(again) is True and torch.equal(again, torch.arange(4096.0))


@case("accelerator.pin.views", requires=[MEMORY_PINNED])
def test_views(accelerator):
    """Views of pinned memory are pinned, and results computed from it are not."""
    views, results = answers_of_is_pinned(accelerator.is_pinned, accelerator.pin_memory(torch.arange(4096.0)))

    assert all(answer is True for answer in views), "a view of pinned memory is not pinned"
    assert all(answer is False for answer in results), "a result is pinned without having been asked for"


@case("accelerator.pin.empty", requires=[MEMORY_PINNED])
def test_empty(accelerator):
    """pin_empty() and pin_empty_like() return pinned host tensors of the requested shape and dtype."""
    like = torch.zeros(3, 5, dtype=torch.float16)
    assert accelerator.is_pinned(like) is False, f"is_pinned(pageable) is {accelerator.is_pinned(like)!r}"
    made = {
        "pin_empty(3, 5)": accelerator.pin_empty(3, 5, dtype=torch.float16),
        "pin_empty((3, 5))": accelerator.pin_empty((3, 5), dtype=torch.float16),
        "pin_empty_like(t)": accelerator.pin_empty_like(like),
        "pin_empty_like(t, dtype)": accelerator.pin_empty_like(like.float(), dtype=torch.float16),
    }

    for call, tensor in made.items():
        assert tuple(tensor.shape) == (3, 5) and tensor.dtype is torch.float16, f"{call}: {tensor.shape} {tensor.dtype}"
        assert tensor.device.type == "cpu" and accelerator.is_pinned(tensor) is True, f"{call} is not pinned"


@case("accelerator.pin.empty_elsewhere", requires=[MEMORY_PINNED])
def test_empty_elsewhere(accelerator):
    """pin_empty() and pin_empty_like() raise ValueError for a device other than the host."""
    with pytest.raises(ValueError):
        accelerator.pin_empty(4, dtype=torch.float32, device="meta")
    with pytest.raises(ValueError):
        accelerator.pin_empty_like(torch.zeros(4), device="meta")


@case("accelerator.pin.to_device", requires=[MEMORY_PINNED_ASYNC])
def test_to_device(accelerator, device):
    """A non-blocking copy from pinned memory is complete after synchronize()."""
    source = accelerator.pin_memory((torch.arange(1 << 22) % 251).to(torch.float32))

    wrong = wrong_after_copy_to_device(accelerator, device, source)

    assert wrong == 0, f"{wrong} of {source.numel()} elements had not arrived after synchronize()"


@case("accelerator.pin.to_host", requires=[MEMORY_PINNED_ASYNC])
def test_to_host(accelerator, device):
    """A non-blocking copy to pinned memory, queued behind long work, is complete after synchronize()."""
    pinned = accelerator.pin_memory(torch.full((256, 256), -2.0))

    wrong = wrong_after_copy_to_host(accelerator, device, pinned)

    assert wrong == 0, f"{wrong} elements had not arrived on the host after synchronize()"


@case("accelerator.pin.reuse", requires=[MEMORY_PINNED_ASYNC])
def test_reuse(accelerator, device):
    """A pinned buffer is reused only after the non-blocking copies of it, or of a part of it, have run."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.empty_like(source)
    arrived = []

    for start in range(4):
        for part in (slice(None), slice(1, None)):
            conveyor.carry(source, target)
            # The pinned buffer is freed here. Its block may serve the next round before the queued copy has read it.
            arrived.append(accelerator.pin_memory(numbers(HOST, start))[part].to(device, non_blocking=True))
    accelerator.synchronize()

    for number, tensor in enumerate(arrived):
        start, is_part = divmod(number, 2)
        wrong = int((tensor.cpu() != numbers(HOST, start)[is_part:]).sum())
        assert wrong == 0, f"copy {number}: {wrong} elements come from a buffer that was reused too early"


@case("accelerator.pin.strided", requires=[MEMORY_PINNED_ASYNC])
def test_strided(accelerator, device, check):
    """A non-blocking copy of a pinned tensor with gaps, or transposed, follows its strides, in both directions."""
    pinned = accelerator.pin_memory(torch.arange(33.0 * 64).view(33, 64))
    views = {"with gaps": pinned[:, 1::2], "transposed": pinned.t(), "from the middle": pinned[7:, 3:50]}

    for name, view in views.items():
        right = view.clone()
        there = torch.full(tuple(view.shape), -1.0, device=device)
        there.copy_(view, non_blocking=True)
        accelerator.synchronize()
        check.equal(there.cpu(), right, f"the copy to the device, {name}")
        view.copy_(there * 2, non_blocking=True)
        accelerator.synchronize()
        check.equal(view.clone(), right * 2, f"the copy to the host, {name}")


@case("accelerator.pin.pageable_copies", requires=[COPY], level=Level.CORE)
def test_pageable_copies(accelerator, device):
    """Neither overwriting pageable memory after synchronize() nor freeing it at once changes a non-blocking copy."""
    source = numbers(HOST)

    there = source.to(device, copy=True, non_blocking=True)
    accelerator.synchronize()
    source.fill_(-1.0)

    wrong = int((there.cpu() != numbers(HOST)).sum())
    assert wrong == 0, f"{wrong} elements of the copy changed with their source"
    for count in (5, source.numel()):
        expected = numbers(HOST)[:count]
        # Nobody holds the source of this copy. The memory that is filled next is often the same.
        there = numbers(HOST)[:count].clone().to(device, non_blocking=True)
        others = [torch.full((count,), -1.0) for _ in range(4)]
        accelerator.synchronize()
        wrong = int((there.cpu() != expected).sum())
        assert wrong == 0, (
            f"{wrong} elements of a copy changed: {len(others)} tensors were made after its source was freed"
        )

"""Page-locked host memory: values, views, honest answers, and copies that do not wait."""

from __future__ import annotations

import pytest
import torch

from conformance.accelerators.capabilities import COPY, MEMORY_PINNED, MEMORY_PINNED_ASYNC
from conformance.case import Level, case
from conformance.suites.shared_bodies import (
    answers_of_is_pinned,
    wrong_after_copy_to_device,
    wrong_after_copy_to_host,
)

from .conveyor import Conveyor, numbers

HOST = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)


@case("accelerator.pin.values", requires=[COPY], level=Level.CORE)
def test_values(accelerator):
    """pin_memory gives a host tensor with the same values, shape and dtype, and leaves its argument as it was."""
    for dtype in DTYPES:
        source = (torch.arange(60) % 2 if dtype is torch.bool else torch.arange(60)).to(dtype).view(3, 4, 5)
        kept = source.clone()
        pinned = accelerator.pin_memory(source)
        assert isinstance(pinned, torch.Tensor), f"pin_memory answers {pinned!r}"
        assert pinned.device.type == "cpu" and pinned.dtype is dtype, f"{pinned.dtype} on {pinned.device}"
        assert pinned.shape == source.shape, f"pin_memory turns {tuple(source.shape)} into {tuple(pinned.shape)}"
        assert torch.equal(pinned, kept), f"pin_memory changes values of {dtype}"
        assert torch.equal(source, kept), "pin_memory changes its argument"


@case("accelerator.pin.arguments", requires=[COPY], level=Level.CORE)
def test_arguments(accelerator):
    """make_copy and match_shape are taken by name; without a copy the result still has the size and dtype."""
    source = torch.arange(60.0).view(3, 4, 5)

    copied = accelerator.pin_memory(source, make_copy=True, match_shape=True)
    shaped = accelerator.pin_memory(source, make_copy=False, match_shape=True)
    sized = accelerator.pin_memory(source, make_copy=False, match_shape=False)

    assert torch.equal(copied, source)
    assert shaped.shape == source.shape and shaped.dtype is source.dtype, f"{tuple(shaped.shape)} {shaped.dtype}"
    assert sized.numel() == source.numel() and sized.dtype is source.dtype, f"{sized.numel()} {sized.dtype}"


@case("accelerator.pin.pageable_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_pageable_is_not_pinned(accelerator):
    """is_pinned() is False for ordinary memory, its views and empty tensors: a false True corrupts copies."""
    source = torch.arange(4096.0)
    accelerator.pin_memory(torch.arange(16.0))  # PyTorch answers for the device only once it is at work

    for tensor in (source, source[7:], source.view(64, 64).t(), torch.empty(0), torch.zeros(())):
        assert accelerator.is_pinned(tensor) is False, f"is_pinned(pageable) is {accelerator.is_pinned(tensor)!r}"


@case("accelerator.pin.no_data_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_no_data_is_not_pinned(accelerator):
    """is_pinned() is False for meta and fake tensors, and does not touch their data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(16)

    for tensor in (torch.empty(16, device="meta"), fake):
        answer = accelerator.is_pinned(tensor)
        assert answer is False, f"is_pinned({tensor.device} tensor without data) is {answer!r}"


@case("accelerator.pin.device_is_not_pinned", requires=[COPY], level=Level.CORE)
def test_device_is_not_pinned(accelerator, device):
    """is_pinned() is False for tensors on the device."""
    tensor = torch.zeros(4096, device=device)

    assert accelerator.is_pinned(tensor) is False, f"is_pinned() of a tensor on {tensor.device} is not False"


@case("accelerator.pin.unpin", requires=[COPY], level=Level.CORE)
def test_unpin(accelerator):
    """unpin_memory answers True if it released a lock, and keeps the values; None or False leaves all as it was."""
    pinned = accelerator.pin_memory(torch.arange(4096.0))
    was = accelerator.is_pinned(pinned)

    answer = accelerator.unpin_memory(pinned)

    assert answer in (True, False, None), f"unpin_memory answers {answer!r}"
    expected = False if answer else was
    assert accelerator.is_pinned(pinned) is expected, f"unpin_memory answers {answer}, is_pinned {not expected}"
    if not answer:
        assert torch.equal(pinned, torch.arange(4096.0)), "unpin_memory changed the values"


@case("accelerator.pin.is_pinned", requires=[MEMORY_PINNED])
def test_is_pinned(accelerator):
    """What pin_memory gives is pinned, and pinning it again is harmless."""
    pinned = accelerator.pin_memory(torch.arange(4096.0))

    assert accelerator.is_pinned(pinned) is True, f"is_pinned(pin_memory(t)) is {accelerator.is_pinned(pinned)!r}"
    again = accelerator.pin_memory(pinned)
    assert accelerator.is_pinned(again) is True and torch.equal(again, torch.arange(4096.0))


@case("accelerator.pin.views", requires=[MEMORY_PINNED])
def test_views(accelerator):
    """Views of pinned memory are pinned; what is computed from it is not."""
    views, results = answers_of_is_pinned(accelerator.is_pinned, accelerator.pin_memory(torch.arange(4096.0)))

    assert all(answer is True for answer in views), "a view of pinned memory is not pinned"
    assert all(answer is False for answer in results), "a result is pinned without having been asked for"


@case("accelerator.pin.empty", requires=[MEMORY_PINNED])
def test_empty(accelerator):
    """pin_empty and pin_empty_like give pinned host tensors of the shape and dtype asked for."""
    like = torch.zeros(3, 5, dtype=torch.float16)
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
    """Only host memory can be pinned: another device is a ValueError."""
    with pytest.raises(ValueError):
        accelerator.pin_empty(4, dtype=torch.float32, device="meta")
    with pytest.raises(ValueError):
        accelerator.pin_empty_like(torch.zeros(4), device="meta")


@case("accelerator.pin.to_device", requires=[MEMORY_PINNED_ASYNC])
def test_to_device(accelerator, device):
    """A non-blocking copy from pinned memory has arrived after synchronize()."""
    source = accelerator.pin_memory((torch.arange(1 << 22) % 251).to(torch.float32))

    wrong = wrong_after_copy_to_device(accelerator, device, source)

    assert wrong == 0, f"{wrong} of {source.numel()} elements had not arrived after synchronize()"


@case("accelerator.pin.to_host", requires=[MEMORY_PINNED_ASYNC])
def test_to_host(accelerator, device):
    """A non-blocking copy to pinned memory, queued behind long work, is there after synchronize()."""
    pinned = accelerator.pin_memory(torch.full((256, 256), -2.0))

    wrong = wrong_after_copy_to_host(accelerator, device, pinned)

    assert wrong == 0, f"{wrong} elements had not arrived on the host after synchronize()"


@case("accelerator.pin.reuse", requires=[MEMORY_PINNED_ASYNC])
def test_reuse(accelerator, device):
    """A pinned buffer that is dropped right after a non-blocking copy is not reused before the copy has run."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.empty_like(source)
    arrived = []

    for start in range(4):
        conveyor.carry(source, target)
        arrived.append(accelerator.pin_memory(numbers(HOST, start)).to(device, non_blocking=True))
    accelerator.synchronize()

    for start, tensor in enumerate(arrived):
        wrong = int((tensor.cpu() != numbers(HOST, start)).sum())
        assert wrong == 0, f"copy {start}: {wrong} elements come from a buffer that was reused too early"


@case("accelerator.pin.pageable_copies", requires=[COPY], level=Level.CORE)
def test_pageable_copies(accelerator, device):
    """A non-blocking copy of pageable memory may not be harmed by overwriting it after synchronize()."""
    source = numbers(HOST)

    there = source.to(device, copy=True, non_blocking=True)
    accelerator.synchronize()
    source.fill_(-1.0)

    wrong = int((there.cpu() != numbers(HOST)).sum())
    assert wrong == 0, f"{wrong} elements of the copy changed with their source"

"""Locked host memory, and tensors as bytes."""

from __future__ import annotations

import gc
import mmap
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.base.errors import UsageError
from conformance.kernels import pinned_memory
from conformance.kernels.builders import find_builder
from conformance.kernels.specifications.host_memory import cast_to_byte_tensor


@pytest.fixture
def handle():
    return find_builder("PinMemoryBuilder")().load().pin_handle()


def locked_kilobytes() -> int:
    found = re.search(r"^VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else -1


@pytest.mark.parametrize("elements", [0, 1, 2048, 2049])
def test_new_memory_is_locked_in_whole_pages_and_aligned(handle, elements):
    before = locked_kilobytes()

    tensor = handle.new_cpu_locked_tensor(elements, torch.zeros(3, dtype=torch.float16))

    pages = max(1, -(-2 * elements // mmap.PAGESIZE))
    assert (tensor.dtype, tuple(tensor.shape), tensor.device.type) == (torch.float16, (elements,), "cpu")
    assert locked_kilobytes() - before == pages * mmap.PAGESIZE // 1024
    assert elements == 0 or tensor.data_ptr() % mmap.PAGESIZE == 0
    assert handle.is_pinned(tensor) is (elements > 0)
    tensor.fill_(1.5)
    assert tensor.sum() == 1.5 * elements


def test_views_are_pinned_and_results_are_not(handle):
    tensor = handle.new_cpu_locked_tensor(4096, torch.zeros(1))

    for view in (tensor[7:], tensor.view(64, 64).t(), tensor[::3], tensor[-1], tensor.view(torch.uint8)):
        assert handle.is_pinned(view) is True
        assert pinned_memory.PinHandle().is_pinned(view) is True
    for other in (tensor + 1, tensor.clone(), torch.zeros(4096), torch.zeros(4, device="meta")):
        assert handle.is_pinned(other) is False


def test_a_tensor_that_reaches_beyond_locked_memory_is_not_pinned(handle):
    pages = torch.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), dtype=torch.uint8)
    locked = handle.new_cpu_locked_tensor(mmap.PAGESIZE, torch.zeros(1, dtype=torch.uint8))
    start = pages.data_ptr()
    pinned_memory._LOCKED._ranges[start] = mmap.PAGESIZE  # as if the first page were locked

    answers = [handle.is_pinned(view) for view in (pages[:5], pages[mmap.PAGESIZE - 1 :], pages[mmap.PAGESIZE :])]

    pinned_memory._LOCKED._ranges.pop(start)
    assert answers == [True, False, False]
    assert handle.is_pinned(locked)


def test_freeing_unlocks_and_keeps_the_values(handle):
    before = locked_kilobytes()
    tensor = handle.new_cpu_locked_tensor(2000, torch.zeros(1)).fill_(3)

    assert handle.free_cpu_locked_tensor(tensor[5:]) is True

    assert locked_kilobytes() == before
    assert handle.is_pinned(tensor) is False
    assert tensor.sum() == 6000
    assert handle.free_cpu_locked_tensor(tensor) is False
    assert handle.free_cpu_locked_tensor(torch.zeros(5)) is False
    assert handle.free_cpu_locked_tensor(torch.zeros(0)) is False


def test_freeing_by_address(handle):
    tensor = handle.new_cpu_locked_tensor(10, torch.zeros(1))

    assert handle.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is True
    assert handle.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is False


def test_memory_goes_back_with_its_last_view(handle):
    before, pieces = locked_kilobytes(), len(pinned_memory._LOCKED._ranges)
    view = handle.new_cpu_locked_tensor(100_000, torch.zeros(1))[5:7]
    gc.collect()
    assert handle.is_pinned(view)

    del view
    gc.collect()

    assert locked_kilobytes() == before
    assert len(pinned_memory._LOCKED._ranges) == pieces


def test_a_fork_has_no_locked_memory(handle):
    tensor = handle.new_cpu_locked_tensor(10, torch.zeros(1))
    child = os.fork()
    if child == 0:
        os._exit(int(handle.is_pinned(tensor)))

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert handle.is_pinned(tensor)


def test_tensors_without_data_are_not_touched(handle, monkeypatch):
    class Fake(torch.Tensor):
        def data_ptr(self) -> int:
            raise AssertionError("there is no data")

    # PyTorch's own module takes seconds to import.
    monkeypatch.setitem(sys.modules, "torch._subclasses.fake_tensor", SimpleNamespace(FakeTensor=Fake))
    tensor = torch.zeros(16).as_subclass(Fake)

    assert handle.is_pinned(tensor) is False
    assert handle.free_cpu_locked_tensor(tensor) is False


def test_bad_arguments_are_named(handle):
    for wrong in (-1, 1.5, True):
        with pytest.raises(UsageError, match="num_elem: expected a number of elements, got"):
            handle.new_cpu_locked_tensor(wrong, torch.zeros(1))
    with pytest.raises(UsageError, match="example_tenosr: expected a tensor, got list"):
        handle.new_cpu_locked_tensor(1, [])
    with pytest.raises(UsageError, match="tensor: expected a tensor, got int"):
        handle.is_pinned(3)


def test_a_refused_lock_is_an_error_and_never_pageable_memory(handle, monkeypatch):
    class NoLocks:
        def mlock(self, address: int, size: int) -> int:
            return -1

    pieces = len(pinned_memory._LOCKED._ranges)
    monkeypatch.setattr(pinned_memory, "_libc", NoLocks)

    with pytest.raises(
        UsageError, match=r"num_elem: expected memory that may be locked, got 4096 bytes (.|\n)*ulimit -l"
    ):
        handle.new_cpu_locked_tensor(10, torch.zeros(1))

    assert len(pinned_memory._LOCKED._ranges) == pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_a_byte_cast_is_the_same_memory(dtype, shape):
    tensor = torch.ones(shape, dtype=dtype)

    view = find_builder("UtilsBuilder")().load().cast_to_byte_tensor(tensor)

    assert (view.dtype, tuple(view.shape)) == (torch.uint8, (tensor.numel() * dtype.itemsize,))
    assert view.data_ptr() == tensor.data_ptr()
    assert view.numpy().tobytes() == tensor.numpy().tobytes() if dtype is not torch.bfloat16 else True
    view.zero_()
    assert bool((tensor == 0).all())


def test_a_list_of_tensors_gives_a_list_of_views():
    tensors = [torch.ones(3), torch.ones(2, dtype=torch.float16, requires_grad=True)]

    views = cast_to_byte_tensor(tensors)

    assert [view.data_ptr() for view in views] == [tensor.data_ptr() for tensor in tensors]
    assert [view.numel() for view in views] == [12, 4]
    assert cast_to_byte_tensor([]) == []


def test_byte_casts_name_what_is_wrong():
    with pytest.raises(UsageError, match=r"tensor: expected a contiguous tensor, got strides \(1, 3\)"):
        cast_to_byte_tensor(torch.zeros(2, 3).t())
    with pytest.raises(UsageError, match=r"tensor\[1\]: expected a tensor, got float"):
        cast_to_byte_tensor([torch.zeros(2), 1.0])


def test_memcpy_copies_bytes_or_says_why_not():
    copy = find_builder("AsyncIOBuilder")().load().deepspeed_memcpy
    source, target = torch.randn(5), torch.zeros(20, dtype=torch.uint8)

    assert copy(target, source) == 0

    assert torch.equal(target.view(torch.float32), source)
    with pytest.raises(UsageError, match="argument src: expected 20 bytes, as dst, got 4"):
        copy(target, torch.zeros(1))
    with pytest.raises(UsageError, match="argument dst: expected a contiguous tensor"):
        copy(target.view(4, 5).t(), source)
    with pytest.raises(UsageError, match="argument src: expected a tensor on cpu"):
        copy(target, torch.zeros(5, device="meta"))

"""Page-locked host memory without an accelerator: DeepSpeed's ``pin_handle``.

Memory comes from the operating system in whole pages and is locked with ``mlock``. It lives as long as a tensor uses
it. Freeing it removes the lock and leaves the pages to the garbage collector, so that no view becomes invalid.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import resource
import sys
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.arguments import wrong


class PinHandle:
    """Factory of locked tensors, which it also recognises and frees. All handles of a process share them."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: Tensor) -> Tensor:
        """Return an uninitialised flat tensor of ``num_elem`` elements of the example's dtype, page-aligned and locked.

        The misspelt argument name is DeepSpeed's. Raises UsageError for a bad argument, or if the operating system
        refuses the lock.
        """
        if isinstance(num_elem, bool) or not isinstance(num_elem, int) or num_elem < 0:
            raise wrong("num_elem", "a number of elements", repr(num_elem))
        if not isinstance(example_tenosr, Tensor):
            raise wrong("example_tenosr", "a tensor", type(example_tenosr).__name__)
        return _LOCKED.tensor(num_elem, example_tenosr.dtype)

    def free_cpu_locked_tensor(self, locked_tensor: Tensor) -> bool:
        """Unlock the memory of the tensor; return False if no handle locked it. The values stay readable."""
        return not _has_no_data(locked_tensor) and _LOCKED.free(locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, data_ptr: int) -> bool:
        """Unlock the memory that contains the address ``data_ptr``; return False if no handle locked it."""
        return _LOCKED.free(data_ptr)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return True if all of the tensor's bytes are locked by a handle or pinned by PyTorch; views count as well."""
        if _has_no_data(tensor):
            return False
        first, last = _extent(tensor)
        return _LOCKED.holds(first, last) or bool(tensor.is_pinned())


class _LockedMemory:
    """Locked memory ranges of this process: size by address. A forked child has none: locks are not inherited."""

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._ranges: dict[int, int] = {}

    def tensor(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a flat tensor in locked pages of its own. Raises UsageError if the lock is refused."""
        size = max(elements * dtype.itemsize, 1)  # mmap refuses a size of 0
        memory = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if _libc().mlock(address, len(memory)) != 0:
            raise _refusal(len(memory), ctypes.get_errno())
        with self._lock:
            self._own_ranges()[address] = len(memory)
        # Tensors and views keep ``memory`` alive. Only when the last one is gone, the range is forgotten.
        weakref.finalize(memory, self.forget, address)
        return torch.frombuffer(memory, dtype=torch.uint8)[: elements * dtype.itemsize].view(dtype)

    def holds(self, first: int, last: int) -> bool:
        """Return True if one locked range contains the addresses from ``first`` up to ``last``."""
        with self._lock:
            return any(start <= first and last <= start + size for start, size in self._own_ranges().items())

    def free(self, address: int) -> bool:
        """Unlock the range that contains ``address``; return False if there is none."""
        with self._lock:
            found = [start for start, size in self._own_ranges().items() if start <= address < start + size]
            for start in found:
                _libc().munlock(start, self._ranges.pop(start))
        return bool(found)

    def forget(self, address: int) -> None:
        """Remove the range whose pages are about to be unmapped; unmapping unlocks them."""
        with self._lock:
            self._own_ranges().pop(address, None)

    def _own_ranges(self) -> dict[int, int]:
        if self._process != os.getpid():
            self._process, self._ranges = os.getpid(), {}
        return self._ranges


def is_fake(tensor: Tensor) -> bool:
    """Return True for a tensor without memory that stands for a real one, as under torch.compile."""
    # Importing that module takes seconds. Where nothing has imported it, there are no such tensors.
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def _has_no_data(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor):
        raise wrong("tensor", "a tensor", type(tensor).__name__)
    return tensor.device.type != "cpu" or is_fake(tensor) or tensor.numel() == 0


def _extent(tensor: Tensor) -> tuple[int, int]:
    # Computed from the strides, because a view of a larger tensor has gaps.
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _refusal(size: int, code: int) -> UsageError:
    """Return the error for memory that may not be locked, with the limit of this process in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes in all"
    hint = f"the limit of this process is {allowed}; raise it with ulimit -l"
    return wrong("num_elem", "memory that may be locked", f"{size} bytes that may not: {os.strerror(code)}", hint)


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library with the argument types of ``mlock`` and ``munlock``."""
    loaded = ctypes.CDLL(None, use_errno=True)
    # Without these types ctypes would pass addresses as 32-bit integers.
    for function in (loaded.mlock, loaded.munlock):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return loaded


_LOCKED = _LockedMemory()

"""Block size and current device for kernel launches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

#: Elements per program in kernels that pass over memory once. A program has four warps of 32 threads, so each thread
#: has 8 elements: one 16-byte access in a 16-bit dtype, two in float32. Smaller blocks make accesses narrower. Larger
#: blocks need more registers, since Adam keeps four numbers per element.
BLOCK = 1024


def current(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that makes the tensor's device current.

    Triton launches on the current device, even if the pointers belong to another one.
    """
    # A device module without such a guard (torch.cpu) needs none.
    guard = getattr(getattr(torch, tensor.device.type), "device", None)
    here: AbstractContextManager[Any] = nullcontext() if guard is None else guard(tensor.device)
    return here

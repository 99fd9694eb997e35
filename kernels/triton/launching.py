"""What the launches of all families share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

#: Elements of one program in kernels that go through memory once: of four warps of 32 threads each has 8, which is
#: one access of 16 bytes in a 16-bit dtype and two in float32. Smaller blocks leave accesses narrow; larger ones need
#: more registers, since Adam keeps four numbers for each element.
BLOCK = 1024


def current(tensor: Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the current one: Triton launches there, wherever the pointers lead."""
    guard = getattr(getattr(torch, tensor.device.type), "device", None)
    here: AbstractContextManager[Any] = nullcontext() if guard is None else guard(tensor.device)
    return here

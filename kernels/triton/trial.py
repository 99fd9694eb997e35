"""Trial kernel: shows whether Triton runs on a device at all, and whether masked stores work."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _count(target: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, lanes + 1, mask=lanes < count)


def blocks_written(device_type: str) -> list[int]:
    """Run the kernel on four zeros, and return them. A working device gives [1, 2, 3, 0]."""
    target = torch.zeros(4, dtype=torch.int32, device=device_type)
    _count[(1,)](target, 3, BLOCK=4)
    return [int(number) for number in target.tolist()]

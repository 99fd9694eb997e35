"""Facts about the arguments of a call: dtype, layout, size, and the value of a plain argument."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

#: Tensors of a list that are looked at; a list of a thousand tensors has equal ones.
_OF_LIST = 16
#: Types of arguments whose value is kept.
_PLAIN = (bool, str, type(None), torch.dtype)
#: Layouts of inputs, as flags name them.
LAYOUTS = ("strided", "offset", "expanded", "channels_last", "0-dim", "empty")


def flags_of(value: Any) -> Iterator[str]:
    """Yield the flags of an argument: of a tensor its dtype, size class and layout; of a small value the value."""
    if isinstance(value, torch.Tensor):
        yield from _flags_of_tensor(value)
    elif isinstance(value, (list, tuple)):
        if any(isinstance(item, torch.Tensor) for item in value):
            yield "list"
            yield from {flag for item in value[:_OF_LIST] for flag in flags_of(item)}
        else:
            yield f"={value}"[:40]
    elif isinstance(value, _PLAIN) or (isinstance(value, int) and abs(value) < 10):
        yield f"={value}"
    elif isinstance(value, (int, float, complex)):
        yield "number"


def _flags_of_tensor(tensor: torch.Tensor) -> Iterator[str]:
    yield str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        yield str(tensor.layout).removeprefix("torch.")
        return
    elements = tensor.numel()
    yield f"n{elements.bit_length()}"
    if not elements:
        yield "empty"
    elif tensor.dim() == 0:
        yield "0-dim"
    if tensor.storage_offset():
        yield "offset"
    if elements > 1 and not tensor.is_contiguous():
        yield "strided"
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            yield "expanded"
        if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            yield "channels_last"


def size_class(flags: Sequence[str]) -> int:
    """Return the bit length of the largest number of elements among the flags."""
    return max((int(flag[1:]) for flag in flags if flag[:1] == "n" and flag[1:].isdigit()), default=0)


def dtypes_of(flags: Sequence[str]) -> set[str]:
    """Return the flags that are dtypes."""
    return {flag for flag in flags if isinstance(getattr(torch, flag, None), torch.dtype)}

"""Settings of a handle, and checks of its arguments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.pinned_memory import is_fake

#: Parts of a transfer begin at multiples of this in the file, so that only its ends miss whole blocks.
BLOCK = 4096
_MOST_REQUESTS = 65536  # Linux's default limit for all processes together (fs.aio-max-nr)


@dataclass(frozen=True)
class HandleSettings:
    """Arguments of ``aio_handle``; ``block_size`` is in bytes."""

    block_size: int = 1 << 20
    queue_depth: int = 128
    single_submit: bool = False
    overlap_events: bool = False
    intra_op_parallelism: int = 1

    def __post_init__(self) -> None:
        limits = {"block_size": 1 << 40, "queue_depth": _MOST_REQUESTS, "intra_op_parallelism": 1024}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not _is_integer(value) or not 1 <= value <= limit:
                raise wrong(name, f"an integer from 1 to {limit}", repr(value))
        for name in ("single_submit", "overlap_events"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, "True or False", repr(getattr(self, name)))


def check_buffer(buffer: Any) -> Tensor:
    """Return ``buffer``, detached; raise UsageError unless its bytes can be moved as they lie in memory."""
    tensor = check_tensor("buffer", buffer, contiguous=False)
    if tensor.layout is not torch.strided or tensor.is_meta or is_fake(tensor):
        raise wrong("buffer", "a strided tensor with memory", f"a {tensor.layout} tensor on {tensor.device}")
    check_tensor("buffer", tensor)
    if tensor.is_conj() or tensor.is_neg():
        raise wrong("buffer", "a tensor with its own values", "a lazy conjugate; call resolve_conj() and resolve_neg()")
    return tensor.detach()


def host_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous host tensor as a flat uint8 view."""
    return tensor.reshape(-1).view(torch.uint8)


def check_offset(offset: Any) -> int:
    """Return ``offset`` in bytes; raise UsageError unless it is a whole number from 0 on."""
    if not _is_integer(offset) or not 0 <= offset < 1 << 62:
        raise wrong("file_offset", "a number of bytes from 0 on", repr(offset))
    return int(offset)


def check_filename(filename: Any) -> str | bytes | int:
    """Return ``filename`` as a path or as the descriptor of an open file. Raises UsageError."""
    if _is_integer(filename) and filename >= 0:
        return int(filename)
    if not isinstance(filename, (str, bytes, os.PathLike)) or not os.fspath(filename):
        raise wrong("filename", "a path or an open file's number", repr(filename))
    path: str | bytes = os.fspath(filename)
    return path


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

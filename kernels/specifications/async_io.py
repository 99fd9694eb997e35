"""Asynchronous file I/O of tensors.

Separate cases (``ops.aio_handle…``) call these entry points, because a handle has state and its results are in files.

Implementations in use disagree on some points. This specification decides: a device tensor is transferred, or the call
raises. Sizes and offsets are arbitrary. A failure raises an exception; no return value stands for an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from conformance.accelerators.backends import builtin_names
from conformance.accelerators.capabilities import Mode
from conformance.kernels.async_io import Handle, PortableHandle, describe, native_handle
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSpecification,
    Native,
    TensorLocation,
)

_COMPILED = "compiled, with the kernel's asynchronous I/O where that is allowed"
_EXACT = ErrorBudget(rounding=0.0, conditioning=0.0, source="bytes are moved, not computed")
Name = str | Path | int
_Settings = tuple[int, int, bool, bool]


def aio_read(
    buffer: Tensor,
    filename: Name,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Fill the tensor from the beginning of the file, with a temporary handle. Returns 0. Raises as the handle does."""
    settings = (block_size, queue_depth, single_submit, overlap_events)
    return _read(PortableHandle, buffer, filename, settings, validate)


def aio_write(
    buffer: Tensor,
    filename: Name,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Write the tensor to the beginning of the file, with a temporary handle. Returns 0. Raises as the handle does."""
    settings = (block_size, queue_depth, single_submit, overlap_events)
    return _write(PortableHandle, buffer, filename, settings, validate)


def _read(kind: type[Handle], buffer: Tensor, filename: Name, settings: _Settings, validate: bool) -> int:
    """Read the file with a handle of its own, and return the handle's answer."""
    handle = kind(*settings)
    try:
        return handle.read(buffer, filename, validate)
    finally:
        handle.close()


def _write(kind: type[Handle], buffer: Tensor, filename: Name, settings: _Settings, validate: bool) -> int:
    """Write the file with a handle of its own, and return the handle's answer."""
    handle = kind(*settings)
    try:
        return handle.write(buffer, filename, validate)
    finally:
        handle.close()


def _compiled(transfer: Callable[..., int]) -> Callable[..., int]:
    """Return the call with the compiled handle. Raises SetupError without a compiler."""
    kind = native_handle()
    return lambda buffer, filename, *settings: transfer(kind, buffer, filename, settings[:-1], settings[-1])


def _no_tensors(given: Arguments) -> Mapping[str, Expected]:
    """Return no results: the kernel has no samples, because a call's results are in a file."""
    return {}


def _entry(
    name: str, reference: Callable[..., object], load: Callable[[], Callable[..., object]]
) -> KernelSpecification:
    """Return the specification of an entry point. Its cases do their own I/O, so it has no samples."""
    return KernelSpecification(
        name=name,
        builder="AsyncIOBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32",),
        samples=(),
        oracle=_no_tensors,
        budget=_EXACT,
        reference=reference,
        # The bytes go through host memory, so one compiled implementation serves every device type.
        native=(Native(load, _COMPILED, frozenset(builtin_names())),),
        location=TensorLocation.HOST,
        companions=MappingProxyType({"implementation": describe}),
    )


SPECIFICATIONS = (
    _entry("aio_handle", PortableHandle, native_handle),
    _entry("aio_read", aio_read, functools.partial(_compiled, _read)),
    _entry("aio_write", aio_write, functools.partial(_compiled, _write)),
)

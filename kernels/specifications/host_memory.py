"""Host memory: locked pages, byte copies, and byte views of tensors (the views on any device)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.pinned_memory import PinHandle
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Property,
    Refusal,
    TensorLocation,
)

_EXACT = ErrorBudget(rounding=0.0, conditioning=0.0, source="bytes are copied, not computed")
_DTYPES = ("float32", "float16", "bfloat16")


@overload
def cast_to_byte_tensor(tensor: Tensor) -> Tensor: ...
@overload
def cast_to_byte_tensor(tensor: Sequence[Tensor]) -> list[Tensor]: ...


def cast_to_byte_tensor(tensor: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Return the bytes of a contiguous tensor as a flat uint8 view of the same memory, on any device.

    A sequence of tensors gives a list of views. Writing to a view writes to its tensor. Raises UsageError before any
    view is made.
    """
    tensors = [tensor] if isinstance(tensor, Tensor) else list(tensor)
    for position, source in enumerate(tensors):
        check_tensor("tensor" if isinstance(tensor, Tensor) else f"tensor[{position}]", source)
    views = [source.detach().reshape(-1).view(torch.uint8) for source in tensors]
    return views[0] if isinstance(tensor, Tensor) else views


def deepspeed_memcpy(dst: Tensor, src: Tensor) -> int:
    """Copy the bytes of ``src`` to ``dst``: host tensors of equal size, of any dtype and shape. Returns 0."""
    cast_to_byte_tensor(dst).copy_(cast_to_byte_tensor(src))
    return 0


def _check_memcpy(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors off the host or of different sizes in bytes."""
    for name in ("dst", "src"):
        check_tensor(name, given[name], device="cpu")
    if given["dst"].nbytes != given["src"].nbytes:
        raise wrong("src", f"{given['dst'].nbytes} bytes, as dst", given["src"].nbytes)


def _copied(given: Arguments) -> Mapping[str, Expected]:
    return {"dst": Expected(given["src"].clone().view(torch.int16).view(given["dst"].shape))}


def _memcpy(generator: torch.Generator, dtype: torch.dtype, *, size: int) -> Arguments:
    """Return a source of arbitrary bits, NaN patterns included, and a target of another shape and dtype.

    The target is int16, so that every bit is compared.
    """
    src = torch.randint(-(1 << 15), 1 << 15, (size * dtype.itemsize // 2,), generator=generator).to(torch.int16)
    return {"dst": torch.zeros(1, src.numel(), dtype=torch.int16), "src": src.view(dtype)}


def _no_tensors(given: Arguments) -> Mapping[str, Expected]:
    """Return no results: the kernel has no samples. Separate cases allocate and free memory."""
    return {}


def _bytes_of(given: Arguments) -> Mapping[str, Expected]:
    """Return the bytes of each tensor, read by numpy from host memory."""
    tensors = [given["tensor"]] if isinstance(given["tensor"], Tensor) else given["tensor"]
    # Through int16: numpy has no bfloat16.
    values = [
        torch.tensor(list(tensor.reshape(-1).view(torch.int16).numpy().tobytes()), dtype=torch.uint8)
        for tensor in tensors
    ]
    if isinstance(given["tensor"], Tensor):
        return {"result": Expected(values[0], dtype=torch.uint8)}
    return {f"result[{index}]": Expected(value, dtype=torch.uint8) for index, value in enumerate(values)}


def _cast(generator: torch.Generator, dtype: torch.dtype, *, shape: tuple[int, ...]) -> Arguments:
    return {"tensor": torch.randn(shape, generator=generator).to(dtype)}


def _cast_list(generator: torch.Generator, dtype: torch.dtype) -> Arguments:
    return {"tensor": [torch.randn(size, generator=generator).to(dtype) for size in (3, 0, 65)]}


def _same_memory(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check that a write to the byte view changes the tensor; optimizers and swapping code rely on this."""
    tensor = torch.randn(33, generator=generator).to(dtype).to(device)
    written = torch.randn(33, generator=generator).to(dtype)

    view = functions.cast_to_byte_tensor(tensor)
    view.copy_(written.view(torch.uint8))

    yield "the tensor after a write to its bytes", tensor.view(torch.int16), Expected(written.view(torch.int16))
    yield "the address of the bytes", torch.tensor(view.data_ptr()), Expected(torch.tensor(tensor.data_ptr()))


SPECIFICATIONS = (
    KernelSpecification(
        name="deepspeed_memcpy",
        builder="AsyncIOBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32",),
        samples=tuple(KernelSample(str(size), functools.partial(_memcpy, size=size)) for size in (65537, 0)),
        oracle=_copied,
        budget=_EXACT,
        reference=deepspeed_memcpy,
        changes=("dst",),
        validate=_check_memcpy,
        refusals=(
            Refusal("sizes", "src", lambda given: {**given, "src": given["src"][:-1]}),
            Refusal("strides", "dst", lambda given: {**given, "dst": torch.zeros(4, 6).t()}),
        ),
        location=TensorLocation.HOST,
    ),
    KernelSpecification(
        name="pin_handle",
        builder="PinMemoryBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32",),
        samples=(),
        oracle=_no_tensors,
        budget=_EXACT,
        reference=PinHandle,
        location=TensorLocation.HOST,
    ),
    KernelSpecification(
        name="cast_to_byte_tensor",
        builder="UtilsBuilder",
        mode=Mode.INFERENCE,
        dtypes=_DTYPES,
        samples=(
            KernelSample("vector", functools.partial(_cast, shape=(513,))),
            KernelSample("cube", functools.partial(_cast, shape=(3, 5, 7))),
            KernelSample("number", functools.partial(_cast, shape=())),
            KernelSample("list", _cast_list),
        ),
        oracle=_bytes_of,
        budget=_EXACT,
        reference=cast_to_byte_tensor,
        refusals=(Refusal("strides", "tensor", lambda given: {**given, "tensor": torch.zeros(4, 6).t()}),),
        properties=(Property("memory", _same_memory),),
    ),
)

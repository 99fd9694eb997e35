"""Copies, casts and arithmetic of the host, spoiled: the cases about data types see it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.reports.verdict import Reason
from tests.defects.faults import Where
from tests.defects.mutant import Mutant, StandIn
from tests.defects.stand_ins import cpu, on

Spoil = Callable[[torch.Tensor, tuple[Any, ...]], "torch.Tensor | None"]
COPIES = ("_to_copy", "clone", "copy_")
PRODUCTS = ("mm", "bmm", "addmm")
#: Largest sum of ones that is accumulated in the dtype itself.
STALLS = {torch.float16: 2048.0, torch.bfloat16: 256.0}


class Spoiled(TorchDispatchMode):
    """Dispatch mode that makes the results of some operations wrong: all of them, or only call number ``only``.

    The host is the device as well here, so the expected values are computed by the same operations. A call number
    limits the defect to the device's part.
    """

    def __init__(self, names: tuple[str, ...], spoil: Spoil, only: int | None = None) -> None:
        super().__init__()
        self._names, self._spoil, self._only, self._seen = names, spoil, only, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name not in self._names or not isinstance(result, torch.Tensor):
            return result
        self._seen += 1
        if self._only not in (None, self._seen - 1):
            return result
        spoiled = self._spoil(result, args)
        if spoiled is None:
            return result
        return result.copy_(spoiled) if name.endswith("_") else spoiled


def is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def write(target: torch.Tensor, where: torch.Tensor, value: float) -> None:
    target[where] = value


def quiet_nan(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Replace every NaN with the same NaN."""
    if is_floating(result):
        write(result, result.isnan(), float("nan"))


def unsigned_zero(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    if is_floating(result):
        write(result, result == 0, 0.0)


def flush(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Replace subnormal numbers with zero."""
    if is_floating(result):
        write(result, result.abs() < torch.finfo(result.dtype).smallest_normal, 0.0)


def lose_tail(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Zero the elements that do not fill a vector of 64."""
    if result.dim() == 1 and result.numel() > 64:
        result[result.numel() // 64 * 64 :] = 0


def overrun(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Write one element beyond the result."""
    end = result.storage_offset() + result.numel()
    if (
        result.dim() == 1
        and result.is_contiguous()
        and (end + 1) * result.itemsize <= result.untyped_storage().nbytes()
    ):
        result.as_strided((1,), (1,), end).fill_(0)


def ignore_strides(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Write a strided target as if it were contiguous."""
    if not result.is_contiguous() and result.dim() == 2:
        result.as_strided((result.numel(),), (1,), 0).copy_(args[1].contiguous().flatten())


def truncate(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return the upper half of a float32 as bfloat16, without rounding."""
    if result.dtype is torch.bfloat16 and args[0].dtype is torch.float32:
        return args[0].contiguous().view(torch.int16).view(-1, 2)[:, 1].clone().view(torch.bfloat16).view(result.shape)
    return None


def saturate(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Clamp casts to float16 instead of overflowing to infinity."""
    return result.clamp(-65504.0, 65504.0) if result.dtype is torch.float16 else None


def stall(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Limit sums to the value at which an accumulator of the same dtype stops."""
    return result.clamp_max(STALLS[result.dtype]) if result.dtype in STALLS else None


def half_mantissa(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """Return products in the precision of bfloat16."""
    return result.bfloat16().to(result.dtype)


def off_by_one(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return result + 1


def narrow(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return float32 in place of float64."""
    return result.float() if result.dtype is torch.float64 else None


def float32_inside(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return float64 results in the precision of float32."""
    return result.float().double() if result.dtype is torch.float64 else None


def widen(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """Return float32, as if autocast were ignored."""
    return result.float()


def noise(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """Change the last bits at random, like another order of additions each time."""
    generator = torch.Generator()
    generator.seed()
    return result * (1 + 2.0**-20 * torch.rand(result.shape, generator=generator))


def used_memory(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return torch.ones_like(result)


_RED: tuple[tuple[str, tuple[str, ...], Spoil, int | None], ...] = (
    ("accelerator.dtype.float32_copy", COPIES, quiet_nan, None),
    ("accelerator.dtype.copy[float16]", COPIES, quiet_nan, None),
    ("accelerator.dtype.copy_edges[bfloat16]", COPIES, quiet_nan, None),
    ("accelerator.dtype.copy_edges[float64]", COPIES, flush, None),
    ("accelerator.dtype.copy_edges[float32]", COPIES, unsigned_zero, None),
    ("capabilities.copy", COPIES, quiet_nan, None),
    ("capabilities.dtype[bfloat16]", COPIES, flush, None),
    ("accelerator.dtype.copy_sizes[int8-65]", ("copy_",), lose_tail, None),
    ("accelerator.dtype.copy_sizes[float64-513]", ("copy_",), lose_tail, None),
    ("accelerator.dtype.copy_sizes[bool-1]", ("copy_",), overrun, None),
    ("accelerator.dtype.copy_sizes[complex64-63]", ("copy_",), overrun, None),
    ("accelerator.memory.holds_values[1048577]", ("_to_copy",), lose_tail, 0),
    ("accelerator.dtype.copy_layouts[strided]", ("copy_",), ignore_strides, 0),
    ("accelerator.dtype.copy_layouts[transposed]", ("copy_",), ignore_strides, 0),
    ("accelerator.dtype.cast_from_float32[bfloat16]", ("_to_copy",), truncate, 0),
    ("accelerator.dtype.cast_special[float16]", ("_to_copy",), saturate, 0),
    ("accelerator.dtype.cast_special[bfloat16]", ("_to_copy",), unsigned_zero, 0),
    ("accelerator.dtype.cast_to_float32[int16]", ("_to_copy",), off_by_one, 1),
    ("accelerator.dtype.metadata[float64]", ("empty",), narrow, None),
    ("accelerator.dtype.no_silent_change", ("zeros",), narrow, None),
    ("accelerator.dtype.no_silent_change", ("ones",), narrow, None),
    ("accelerator.dtype.float64_flag", ("div",), float32_inside, None),
    ("accelerator.dtype.compute[float32]", ("threshold_backward",), off_by_one, 0),
    ("accelerator.dtype.compute[bfloat16]", PRODUCTS, off_by_one, 0),
    ("accelerator.dtype.listed_compute", PRODUCTS, off_by_one, None),
    ("accelerator.dtype.copy_broadcast", ("copy_",), off_by_one, None),
    ("accelerator.dtype.accumulate[float16-sum]", ("sum",), stall, None),
    ("accelerator.dtype.accumulate[bfloat16-matmul]", PRODUCTS, stall, None),
    ("accelerator.dtype.accumulate[bfloat16-bmm]", PRODUCTS, stall, None),
    ("accelerator.dtype.accumulate_gradient[bfloat16]", PRODUCTS, stall, None),
    ("accelerator.dtype.denormals[float32]", ("mul",), flush, None),
    ("accelerator.dtype.denormals[float16]", ("add",), flush, None),
    ("accelerator.dtype.matmul_full", PRODUCTS, half_mantissa, None),
    ("accelerator.determinism.repeats[index_add]", ("index_add",), noise, None),
    ("accelerator.determinism.repeats[matmul]", PRODUCTS, noise, None),
    ("accelerator.autocast.products[bfloat16]", PRODUCTS, widen, None),
    ("accelerator.autocast.gradients[bfloat16]", PRODUCTS, off_by_one, 1),
    ("accelerator.autocast.nested[float16]", PRODUCTS, widen, None),
    ("accelerator.memory.zero_filled", ("zeros",), used_memory, None),
)
#: Under the same dispatch mode, so that no case is red for the mode alone.
DATA = StandIn("the host's kernels, spoiled", cpu, context=lambda: Spoiled((), off_by_one))
# AssertionError only: an exception that the defect itself raises does not show that the case detects it.
MUTANTS: tuple[Mutant, ...] = tuple(
    on(
        DATA,
        f"{spoil.__name__} in {', '.join(names)}",
        case,
        Where.COPY,
        context=functools.partial(Spoiled, names, spoil, only),
        reason=Reason.WRONG,
    )
    for case, names, spoil, only in _RED
)

"""Habits of CUDA that differ from PyTorch's CPU and are right, for the simulated accelerator.

Each habit is a function around an operator's host kernel, as a fault is (tests/defects/faults.py). habits.md lists the
habits with their sources. A suite that fails because of one of them accuses a correct device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from conformance.accelerators.simulated.simulator import started
from tests.defects.faults import Around, Call

_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_HALVES = frozenset({torch.float16, torch.bfloat16})


def _tensors(args: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments, also those in lists."""
    found = []
    for value in args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


# --- dtypes that have no kernel --------------------------------------------------------------------------------------


def without(dtypes: Iterable[torch.dtype]) -> Around:
    """Return a habit that refuses first arguments of these dtypes, as AT_DISPATCH does."""
    refused = frozenset(dtypes)

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        first = next(iter(_tensors(args)), None)
        if first is not None and first.dtype in refused:
            raise NotImplementedError(f"not implemented for '{first.dtype}'")
        return call(args)

    return around


# --- choices among equal elements ------------------------------------------------------------------------------------


def _reversed_sort(x: torch.Tensor, dim: int, descending: bool) -> torch.Tensor:
    """Return the indices of a sort that puts the last of equal elements first."""
    if x.dim() == 0:
        return torch.zeros((), dtype=torch.int64)
    order = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True).indices
    return x.shape[dim] - 1 - order


def sort(call: Call, args: list[Any]) -> Sequence[Any]:
    """Order equal elements backwards; a stable sort keeps their order."""
    results = call(args)
    with_stable = args[1] is None or (isinstance(args[1], bool) and len(args) > 3 and isinstance(args[3], bool))
    stable, (dim, descending) = (args[1], args[2:4]) if with_stable else (False, args[1:3])
    if not stable:
        results[1].copy_(_reversed_sort(args[0], dim, descending))
    return results


def topk(call: Call, args: list[Any]) -> Sequence[Any]:
    """Choose the last of equal elements, and leave the order of an unsorted result open."""
    results = call(args)
    x, k, dim, largest, ordered = args[:5]
    if x.dim() and x.numel():
        indices = _reversed_sort(x, dim, largest).narrow(dim, 0, k)
        indices = indices if ordered else indices.flip(dim)
        results[1].copy_(indices)
        results[0].copy_(x.gather(dim, indices))
    return results


def chosen(dim_at: int) -> Around:
    """Return a habit that returns the index of the last element that equals the returned value."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        results = call(args)
        if len(results) < 2:
            return results
        x, dim = args[0], args[dim_at]
        if x.dim() == 0 or x.numel() == 0:
            return results
        values = results[0] if results[0].dim() == x.dim() else results[0].unsqueeze(dim)
        same = (x == values) | (x.isnan() & values.isnan()) if x.is_floating_point() else x == values
        last = x.shape[dim] - 1 - same.flip(dim).to(torch.int8).argmax(dim, keepdim=True)
        results[1].copy_(last.reshape(results[1].shape))
        return results

    return around


def rarest_first_mode(call: Call, args: list[Any]) -> Sequence[Any]:
    """Return the largest of the values that occur most often; the CPU returns the smallest."""
    results = call(args)
    x, dim = args[0], args[1]
    if x.dim() == 0 or x.numel() == 0:
        return results
    rows = x.movedim(dim, -1)
    ordered, order = torch.sort(rows, dim=-1, stable=True)
    # A million elements have no table of all pairs, so equal elements are counted in the sorted row.
    keys = (ordered.double() if ordered.is_floating_point() else ordered.long()).contiguous()
    counts = (torch.searchsorted(keys, keys, right=True) - torch.searchsorted(keys, keys)) * (keys == keys)
    often = counts == counts.amax(-1, keepdim=True)
    place = often.to(torch.int8).flip(-1).argmax(-1, keepdim=True)
    index = order.gather(-1, rows.shape[-1] - 1 - place)
    value = rows.gather(-1, index)
    results[0].copy_(value.squeeze(-1).reshape(results[0].shape))
    results[1].copy_(index.squeeze(-1).reshape(results[1].shape))
    return results


# --- assertions in kernels -------------------------------------------------------------------------------------------


def asserting(dim_at: int | None, index_at: int) -> Around:
    """Return a habit that checks indices in the kernel: the call returns, and the context has ended."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        x, index = args[0], args[index_at]
        size = x.numel() if dim_at is None else (x.shape[args[dim_at]] if x.dim() else 1)
        if index.numel() and (int(index.max()) >= size or int(index.min()) < -size):
            args[index_at] = torch.zeros_like(index)
            results = call(args)
            started().core.set_switch("context_ended", 1.0)
            return results
        return call(args)

    return around


# --- results that PyTorch describes otherwise for devices than for the CPU -----------------------------------------


def wide_statistics(call: Call, args: list[Any]) -> Sequence[Any]:
    """Return mean and reciprocal deviation of 16-bit inputs in float32."""
    results = call(args)
    if args[0].dtype in _HALVES:
        x, shape = args[0].float(), args[1]
        axes = tuple(range(x.dim() - len(shape), x.dim()))
        mean = x.mean(axes, keepdim=True)
        reciprocal = (x.var(axes, unbiased=False, keepdim=True) + args[4]).rsqrt()
        return [results[0], mean, reciprocal]
    return results


def narrow_statistics(first: int, x_at: int, parameters: Sequence[int]) -> Around:
    """Return a habit that gives the host's kernel statistics in the dtype of its inputs.

    With parameters in float32, the host takes statistics in float32.
    """

    def around(call: Call, args: list[Any]) -> None:
        dtype = args[x_at].dtype
        for position in (first, first + 1):
            is_mixed = any(isinstance(args[at], torch.Tensor) and args[at].dtype != dtype for at in parameters)
            if isinstance(args[position], torch.Tensor) and dtype in _HALVES and not is_mixed:
                args[position] = args[position].to(dtype)
        call(args)  # its results stand: one that nobody needs is undefined

    return around


def batch_statistics(call: Call, args: list[Any]) -> Sequence[Any]:
    """Return statistics in float32 for 16-bit inputs; in evaluation those that were used, where the CPU has none."""
    results = call(args)
    if len(args) != 8:
        return results  # without running statistics, or with given outputs
    dtype = torch.float32 if args[0].dtype in _HALVES else args[0].dtype
    if args[5]:
        if args[0].dtype not in _HALVES:
            return results
        x = args[0].float().transpose(0, 1).flatten(1)
        return [results[0], x.mean(1), (x.var(1, unbiased=False) + args[7]).rsqrt()]
    return [results[0], args[3].to(dtype, copy=True), (args[4].to(dtype) + args[7]).rsqrt()]


def contiguous_only(call: Call, args: list[Any]) -> Sequence[Any]:
    """Refuse inputs that are contiguous in no order of their channels: PyTorch makes them so for each device."""
    x = args[0]
    if not (x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))):
        raise RuntimeError("Expected X.is_contiguous(memory_format) to be true, but got false.")
    return call(args)


def column_major(position: int = 0) -> Around:
    """Return a habit that gives a result the layout of a Fortran library."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        results = call(args)
        if len(args) and results[position].dim() >= 2 and not any(results[position] is arg for arg in args):
            results[position] = results[position].mT.contiguous().mT
        return results

    return around


# --- rounding, signs, NaN --------------------------------------------------------------------------------------------


def _noisy(x: torch.Tensor, ulps: int) -> torch.Tensor:
    """Return the tensor with up to ``ulps`` added or taken away, alternating; exact and special values stay."""
    if x.is_complex():
        return torch.complex(_noisy(x.real, ulps), _noisy(x.imag, ulps))
    changed = x
    for _ in range(ulps):
        towards = torch.where((torch.arange(x.numel()) % 2 == 0).reshape(x.shape), math.inf, -math.inf).to(x.dtype)
        changed = torch.nextafter(changed, towards)
    # Powers of two are exact with every library.
    rounded = (x != x.round()) & (x.frexp().mantissa.abs() != 0.5)
    normal = x.isfinite() & changed.isfinite() & (x.abs() > 64 * torch.finfo(x.dtype).smallest_normal)
    return torch.where(normal & rounded, changed, x)


def inexact(float32: int, float64: int) -> Around:
    """Return a habit that computes with an error of some units in the last place, and makes every NaN positive."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        results = call(args)
        for result in results:
            if not isinstance(result, torch.Tensor) or result.dtype not in (torch.float32, torch.float64):
                continue
            ulps = float32 if result.dtype is torch.float32 else float64
            result.copy_(torch.where(result.isnan(), math.nan, _noisy(result, ulps)))
        return results

    return around


def power(call: Call, args: list[Any]) -> Sequence[Any]:
    """Compute powers with an error; the exponents that kernels replace by products and roots stay exact."""
    if any(isinstance(arg, (int, float)) and float(arg) in (-2, -1, -0.5, 0, 0.5, 1, 2, 3) for arg in args[1:2]):
        return call(args)
    return inexact(2, 1)(call, args) or []  # 4 is documented; exhaustive tests of float32 have seen 2


def other_zero(call: Call, args: list[Any]) -> Sequence[Any]:
    """Return the other one of two zeros, as IEEE 754 allows of maximum and minimum."""
    left, right, *_ = _tensors(args)
    both = (left == 0) & (right == 0)  # before the call, which may write in place
    results = call(args)
    for result in results:
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            result.copy_(torch.where(both, -result, result))
    return results


def contracted(exact: Callable[..., torch.Tensor]) -> Around:
    """Return a habit that rounds once instead of twice, as a fused multiply-add does."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        tensors = _tensors(args[:3])
        if len(tensors) < 3 or any(tensor.dtype is not torch.float32 for tensor in tensors):
            return call(args)
        scalar = next((arg for arg in args[3:] if isinstance(arg, (int, float))), 1)
        once = exact(*(tensor.double() for tensor in tensors), scalar)  # before the call, which may write in place
        results = call(args)
        results[0].copy_(once)
        return results

    return around


def other_order(inner: Mapping[int, int]) -> Around:
    """Return a habit that adds the terms of a product in the opposite order. ``inner`` maps arguments to their axes."""

    def around(call: Call, args: list[Any]) -> Sequence[Any]:
        for position, axis in inner.items():
            if isinstance(args[position], torch.Tensor) and args[position].dim() >= 1:
                args[position] = args[position].flip(axis)
        return call(args)

    return around


# --- values that no standard defines ---------------------------------------------------------------------------------


def open_exponent(call: Call, args: list[Any]) -> Sequence[Any]:
    """Return another exponent of infinities and NaN; C leaves it open."""
    results = call(args)
    results[1].copy_(torch.where(args[0].isfinite(), results[1], 7))
    return results


def sorted_unique(call: Call, args: list[Any]) -> Sequence[Any]:
    """Sort unique elements even if nobody asks for it."""
    args[1] = True
    return call(args)


def truncated_power(call: Call, args: list[Any]) -> Sequence[Any]:
    """Compute powers in float32 before a conversion to integers."""
    results = call(args)
    result = results[0]
    if not result.is_floating_point() and not result.is_complex() and not _tensors(args[:4]):
        start, end, steps, base = (float(value) for value in args[:4])
        exponents = torch.linspace(start, end, int(steps), dtype=torch.float32)
        powers = torch.pow(torch.tensor(base, dtype=torch.float32), exponents).to(result.dtype)
        result.copy_(powers if powers.shape == result.shape else result)
    return results


_PRODUCTS = {
    "mm": {0: 1, 1: 0},
    "bmm": {0: 2, 1: 1},
    "addmm": {1: 1, 2: 0},
    "baddbmm": {1: 2, 2: 1},
    "addbmm": {1: 2, 2: 1},
    "mv": {0: 1, 1: 0},
    "addmv": {1: 1, 2: 0},
    "dot": {0: 0, 1: 0},
    "vdot": {0: 0, 1: 0},
}
#: Largest errors (float32, float64) that the CUDA C++ Programming Guide gives, in units in the last place.
_ULPS = {
    (1, 1): ("log", "log1p", "log2", "expm1"),
    (2, 1): ("exp", "exp2", "log10", "rsqrt", "sigmoid", "tanh", "cosh"),
    (2, 2): ("sin", "cos", "atan", "erf", "acos", "asin", "i0", "special_i0e", "special_i1", "special_i1e"),
    (3, 2): ("sinh", "atan2", "atanh", "hypot", "asinh", "gelu", "silu", "mish", "softplus"),
    (4, 2): ("tan", "acosh"),
    (4, 4): ("erfc", "erfinv", "special_erfcx", "special_ndtri", "lgamma", "digamma"),
}


def _with_products() -> dict[str, Around]:
    refuses = without(_INTEGERS)

    def both(order: Around, call: Call, args: list[Any]) -> Sequence[Any] | None:
        return refuses(functools.partial(order, call), args)  # type: ignore[arg-type]

    return {name: functools.partial(both, other_order(inner)) for name, inner in _PRODUCTS.items()}


#: Habits by the operator's name in the namespace aten.
HABITS: Mapping[str, Around] = {
    **_with_products(),
    **{name: inexact(*ulps) for ulps, names in _ULPS.items() for name in names},
    "pow": power,
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), without([torch.int64])),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), without(_INTEGERS)),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"), without([torch.uint8])),
    **dict.fromkeys(("igamma", "igammac", "angle", "histc"), without(_HALVES)),
    **dict.fromkeys(
        ("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"), without([torch.float32, torch.float64])
    ),
    "native_dropout_backward": without([*_INTEGERS, torch.bool]),
    "convolution_overrideable": without([torch.int64]),
    "sort": sort,
    "topk": topk,
    "kthvalue": chosen(2),
    "median": chosen(1),
    "nanmedian": chosen(1),
    "mode": rarest_first_mode,
    "gather": asserting(1, 2),
    "scatter": asserting(1, 2),
    "scatter_": asserting(1, 2),
    "scatter_add": asserting(1, 2),
    "scatter_add_": asserting(1, 2),
    "index_select": asserting(1, 2),
    "native_layer_norm": wide_statistics,
    "native_layer_norm_backward": narrow_statistics(3, 1, (5, 6)),
    "native_batch_norm": batch_statistics,
    "_native_batch_norm_legit": batch_statistics,
    "native_batch_norm_backward": narrow_statistics(5, 1, (2, 3, 4)),
    "native_group_norm": contiguous_only,
    "linalg_inv_ex": column_major(),
    "_linalg_solve_ex": column_major(),
    "cholesky_solve": column_major(),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c"), column_major()),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), other_zero),
    "addcmul": contracted(lambda x, a, b, value: x + value * a * b),
    "addcdiv": contracted(lambda x, a, b, value: x + value * a / b),
    "lerp": contracted(lambda x, end, weight, _: x + weight * (end - x)),
    "frexp": open_exponent,
    "_unique2": sorted_unique,
    "logspace": truncated_power,
}

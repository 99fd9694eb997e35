"""Kernels of the host in the place of PyTorch's, for a whole process: each adds up in another order, or is wrong.

A dispatch mode reaches neither a compiler's graphs nor DDP's buckets nor other threads; the dispatcher's own table
reaches all of them. The simulated device computes with the host's kernels, so it adds up in the other order too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.exact.test_other_order import TURNED, dense

#: Calls that were turned around, by the operator's name.
COUNTED: dict[str, int] = {}
_INSIDE = threading.local()
#: Libraries end when they are collected.
_KEPT: list[torch.library.Library] = []


def of_rows(func: Any, args: list[Any]) -> None:
    """Turn the batch of a convolution's backward pass around: its gradients of weights are sums over it."""
    args[0], args[1] = dense(args[0]).flip(0), dense(args[1]).flip(0)


def of_channels(func: Any, args: list[Any]) -> None:
    """Turn the input channels of a convolution around, where all of them are added up."""
    transposed, groups = args[6], args[8]
    if groups == 1:
        args[0], args[1] = dense(args[0]).flip(1), dense(args[1]).flip(0 if transposed else 1)


def of_tokens(func: Any, args: list[Any]) -> None:
    """Turn the tokens of a table around: the gradient of a row is a sum over them."""
    dims = list(range(args[1].dim()))
    args[0], args[1] = dense(args[0]).flip(dims), args[1].flip(dims)


KERNELS: dict[str, Callable[[Any, list[Any]], None]] = {
    **TURNED, "convolution": of_channels, "convolution_backward": of_rows, "embedding_dense_backward": of_tokens,
}  # fmt: skip


def install(factor: float = 0.0) -> None:
    """Turn every sum and product of the host around. With a factor, results are larger by so many last bits instead."""
    library = torch.library.Library("aten", "IMPL")
    _KEPT.append(library)
    for name, change in KERNELS.items():
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            full = f"aten::{name}" + ("" if overload == "default" else f".{overload}")
            if _has_kernel(full):
                library.impl(full.partition("::")[2], _kernel(full, change, factor), "CPU", with_keyset=True)
    if not factor:
        _install_collectives()


def _has_kernel(full: str) -> bool:
    """Tell whether the host computes this overload, and does not take it apart before."""
    try:
        takes_apart = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        torch.library.get_kernel(full, "CPU")
    except RuntimeError:  # overloads of numbers are in no table
        return False
    return not takes_apart


def _kernel(full: str, change: Callable[[Any, list[Any]], None], factor: float) -> Callable[..., Any]:
    original = torch.library.get_kernel(full, "CPU")
    name, _, overload = full.partition("::")[2].partition(".")
    func = getattr(getattr(torch.ops.aten, name), overload or "default")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        # One kernel calls another: what is turned around twice is in the old order.
        if getattr(_INSIDE, "one", False):
            return original.call_boxed(keys, *args, **kwargs)
        _INSIDE.one = True
        try:
            COUNTED[name] = COUNTED.get(name, 0) + 1
            given = list(args)
            if not factor:
                change(func, given)
            result = original.call_boxed(keys, *given, **kwargs)
            if name == "convolution_backward" and not factor and result[0] is not None:
                result = (result[0].flip(0), *result[1:])
            if factor:
                _spoil(result, factor)
            return result
        finally:
            _INSIDE.one = False

    return kernel


def _spoil(result: Any, factor: float) -> None:
    for each in result if isinstance(result, tuple) else (result,):
        if each is None:
            continue
        if each.is_floating_point():
            each.mul_(1.0 + factor * torch.finfo(each.dtype).eps)
        elif each.dim() > 1:  # other whole numbers are counts and places
            each.add_(1)


# --- collectives ------------------------------------------------------------------------------------------------------


def _install_collectives() -> None:
    library = torch.library.Library("c10d", "IMPL")
    _KEPT.append(library)
    for key in ("CPU", "PrivateUse1"):
        for name, make in (("allreduce_", _all_reduce), ("_reduce_scatter_base_", _reduce_scatter)):
            original = torch.library.get_kernel(f"c10d::{name}", key)
            library.impl(name, make(original), key, with_keyset=True)


def _in_other_order(given: torch.Tensor, group: Any, ranks: int) -> torch.Tensor:
    """Return the sum over the ranks, from the last to the first."""
    COUNTED["ranks"] = COUNTED.get("ranks", 0) + 1
    parts = [torch.empty_like(given, memory_format=torch.contiguous_format) for _ in range(ranks)]
    torch.ops.c10d.allgather_([parts], [given.contiguous()], group, False)[1].wait()
    total = parts.pop()
    while parts:
        total = total + parts.pop()
    return total


def _is_sum(op: Any) -> bool:
    return int(op.op()) == int(dist.ReduceOp.SUM)


def _all_reduce(original: Any) -> Callable[..., Any]:
    def kernel(keys: Any, tensors: list[torch.Tensor], group: Any, op: Any, *rest: Any) -> Any:
        unboxed = dist.ProcessGroup.unbox(group)
        if _is_sum(op):
            for tensor in tensors:
                total = _in_other_order(tensor, group, unboxed.size())
                # The collective adds zeros to one rank's sum: its result, and its work, are those of an all-reduce.
                tensor.copy_(total if unboxed.rank() == 0 else torch.zeros_like(total))
        return original.call_boxed(keys, tensors, group, op, *rest)

    return kernel


def _reduce_scatter(original: Any) -> Callable[..., Any]:
    def kernel(keys: Any, output: torch.Tensor, given: torch.Tensor, group: Any, op: Any, *rest: Any) -> Any:
        unboxed = dist.ProcessGroup.unbox(group)
        if _is_sum(op):
            total = _in_other_order(given, group, unboxed.size())
            given = total if unboxed.rank() == 0 else torch.zeros_like(total)
        return original.call_boxed(keys, output, given, group, op, *rest)

    return kernel

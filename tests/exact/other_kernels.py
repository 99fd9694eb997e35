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
        library.impl("allreduce_", _all_reduce, key)
        library.impl("_reduce_scatter_base_", _reduce_scatter, key)


_KINDS = dist.ReduceOp.RedOpType
#: Functions of two tensors that a reduction repeats. A mean is a sum that is divided.
_OF_TWO = {
    int(_KINDS.SUM): torch.add, int(_KINDS.AVG): torch.add, int(_KINDS.PRODUCT): torch.mul,
    int(_KINDS.MAX): torch.maximum, int(_KINDS.MIN): torch.minimum,
}  # fmt: skip


def _from_the_last(given: torch.Tensor, group: Any, op: Any) -> torch.Tensor:
    """Return the reduction over the ranks, from the last to the first."""
    COUNTED["ranks"] = COUNTED.get("ranks", 0) + 1
    size, kind = dist.ProcessGroup.unbox(group).size(), int(op.op())
    parts = [torch.empty_like(given, memory_format=torch.contiguous_format) for _ in range(size)]
    torch.ops.c10d.allgather_([parts], [given.contiguous()], group, False)[1].wait()
    total = parts.pop()
    while parts:
        total = _OF_TWO[kind](total, parts.pop())
    return total / size if kind == int(_KINDS.AVG) else total


# The old kernels are not called: that would hold Python's lock, for which a thread of gloo may wait with the lock of
# its queue. A broadcast makes the work that has to be returned.


def _all_reduce(tensors: list[torch.Tensor], group: Any, op: Any, sparse: Any, *rest: Any) -> Any:
    for tensor in tensors:
        tensor.copy_(_from_the_last(tensor, group, op))
    return torch.ops.c10d.broadcast_(tensors, group, 0, 0, *rest)


def _reduce_scatter(output: torch.Tensor, given: torch.Tensor, group: Any, op: Any, *rest: Any) -> Any:
    total, rank = _from_the_last(given, group, op), dist.ProcessGroup.unbox(group).rank()
    output.copy_(total.flatten()[rank * output.numel() :][: output.numel()].view_as(output))
    return output, torch.ops.c10d.broadcast_([output.new_zeros(1)], group, 0, 0, *rest)[1]

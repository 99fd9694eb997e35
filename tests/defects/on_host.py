"""Operators that are computed on the host behind the device's back: inputs are copied there, results copied back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

_NAMES = ("mm", "addmm", "bmm", "add", "sub", "mul", "div", "exp", "sin", "sum", "mean", "_softmax", "relu", "tanh")


@contextmanager
def everything_on_host() -> Iterator[None]:
    """Inside, common operators have kernels that copy to the host, compute there, and copy back."""
    library = torch.library.Library("aten", "IMPL")
    for overload in _overloads():
        library.impl(overload.name().split("::")[1], _on_host(overload), "PrivateUse1", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _overloads() -> Iterator[Any]:
    for name in _NAMES:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            one = getattr(packet, overload)
            if (
                not one._schema.is_mutable
                and "Tensor" in str(one._schema)
                and torch._C._dispatch_has_kernel_for_dispatch_key(one.name(), "CPU")
            ):
                yield one


def _on_host(overload: Any) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        device = next(leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if _is_there(leaf))
        host_args, host_kwargs = pytree.tree_map(lambda leaf: leaf.cpu() if _is_there(leaf) else leaf, (args, kwargs))
        result = overload(*host_args, **host_kwargs)
        return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, result)

    return kernel


def _is_there(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "sim"

"""Accelerators that compute on the host behind everyone's back: kernels registered with PyTorch as a vendor would.

They stand in for the simulated accelerator's own kernels and really do what they are accused of: recorded copies to
the host, the operator there, copies back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch._prims_common.wrappers import _maybe_resize_out
from torch.utils import _pytree as pytree

Kernel = Callable[..., Any]


@contextmanager
def registered(kernels: Mapping[str, Kernel]) -> Iterator[None]:
    """Inside, these are the out-of-tree device's kernels of the aten operators named, overload included."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, "PrivateUse1", allow_override=True)
        yield
    finally:
        library._destroy()


def boxed(name: str, device: str) -> dict[str, Kernel]:
    """The kernel that PyTorch's own host fallback is: any operator, all its tensors."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(to_host, (args, kwargs))
        result = operator(*args, **kwargs)
        return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, result)

    return {name: kernel}


def to_host(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def through_numpy(name: str, device: str, function: Callable[[Any], Any]) -> dict[str, Kernel]:
    return {name: lambda tensor: torch.from_numpy(numpy.asarray(function(tensor.cpu().numpy()))).to(device)}


def numpy_exp(device: str) -> dict[str, Kernel]:
    return through_numpy("exp", device, numpy.exp)


def numpy_exp_out(device: str) -> dict[str, Kernel]:
    """The form that writes ``out``, which is what PyTorch calls for the others too; no operator is recorded inside."""

    def exp_out(tensor: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if not torch.can_cast(tensor.dtype, out.dtype):
            raise RuntimeError(f"{tensor.dtype} cannot be cast to {out.dtype}")
        values = torch.from_numpy(numpy.asarray(numpy.exp(tensor.cpu().numpy())))
        return _maybe_resize_out(out, values.shape).copy_(values)

    return {"exp.out": exp_out}


def table_from_numpy(device: str) -> dict[str, Kernel]:
    """A factory: nothing is copied to the host, for there is nothing."""

    def arange(end: Any, *, dtype: Any = None, **layout: Any) -> torch.Tensor:
        return torch.from_numpy(numpy.arange(end)).to(dtype or torch.int64).to(device)

    def arange_out(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
        values = torch.arange(start, end, step, dtype=out.dtype, device="cpu")
        return out.resize_(values.shape).copy_(values)

    return {"arange": arange, "arange.start_out": arange_out}


def everything(device: str) -> dict[str, Kernel]:
    """Every operator that makes new tensors of tensors, and has a kernel on the host."""
    found: dict[str, Kernel] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        space, _, short = name.partition("::")
        schema = torch._C._get_schema(name.partition(".")[0], name.partition(".")[2]) if space == "aten" else None
        if schema is not None and _makes_tensors_of_tensors(schema) and short not in _MADE_BY_THE_ENGINE:
            found |= boxed(short, device)
    return found


#: Without these no device works, whoever computes.
_MADE_BY_THE_ENGINE = frozenset({"_copy_from", "_copy_from_and_resize", "_to_copy", "_local_scalar_dense"})


def _makes_tensors_of_tensors(schema: Any) -> bool:
    values = [*schema.arguments, *schema.returns]
    alias = any(value.alias_info is not None for value in values)
    takes, gives = (any("Tensor" in str(one.type) for one in side) for side in (schema.arguments, schema.returns))
    return takes and gives and not alias

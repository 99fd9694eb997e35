"""Device in Python that is right and unlike the CPU: its tensors are wrappers without an address.

It keeps each tensor as a host tensor inside a wrapper subclass, as backends do whose compiler owns the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

TYPE = "xla"  # a device type that PyTorch knows and that has no kernels in the CPU's build
DEVICE = torch.device(TYPE, 0)


class Wrapper(torch.Tensor):
    """Tensor of the device. Its storage has no address."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})


def _compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target = kwargs.get("device")
    given = {id(leaf.inner): leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Wrapper)}
    args, kwargs = pytree.tree_map(_inside, (args, kwargs))
    result = function(*args, **kwargs)
    for wrapper in given.values():
        if wrapper.shape != wrapper.inner.shape or wrapper.stride() != wrapper.inner.stride():
            wrapper.data = Wrapper(wrapper.inner)  # the call has resized it
    if target is not None and torch.device(target).type == "cpu":
        return result
    return pytree.tree_map(lambda leaf: _wrapped(leaf, given), result)


def _wrapped(leaf: Any, given: dict[int, Wrapper]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return given[id(leaf)] if id(leaf) in given else Wrapper(leaf)


def _inside(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.inner if isinstance(leaf, Wrapper) else leaf


class _Factories(TorchDispatchMode):
    """Mode that makes the device's tensors: copies to it and factories get no tensor of the device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = (kwargs or {}).get("device")
        if target is not None and torch.device(target).type == TYPE:
            return _compute(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


@contextmanager
def python_device() -> Iterator[torch.device]:
    """Register the device for the time of the context."""
    module = ModuleType(f"torch.{TYPE}")
    module.manual_seed_all = torch.manual_seed  # type: ignore[attr-defined]
    with mock.patch.object(torch, TYPE, module, create=True), _Factories():
        yield DEVICE

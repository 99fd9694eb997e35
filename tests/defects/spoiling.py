"""Building blocks of mutants above the kernels: copies, factories, PyTorch's functions, the accelerator's members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.suites.accelerator.test_tensor_types import CONSTRUCTORS

Call = Callable[..., Any]
#: ``spoil(call, args, kwargs)`` returns what the operator is to return; ``call(*args, **kwargs)`` runs it.
Spoil = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]


def on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "sim"


class Spoiled(TorchDispatchMode):
    """Goes around operators by their name without overload, whatever they are computed with."""

    def __init__(self, spoils: Mapping[str, Spoil]) -> None:
        super().__init__()
        self._spoils = spoils

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        spoil = self._spoils.get(func.overloadpacket.__name__)
        return spoil(func, args, kwargs or {}) if spoil else func(*args, **(kwargs or {}))


def spoiled(**spoils: Spoil) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: Spoiled(spoils)


def result_of(change: Callable[[torch.Tensor, tuple[Any, ...]], torch.Tensor | None]) -> Spoil:
    """``change`` may write into a result on the device, or return another. ``copy_`` gets it written back.

    What is captured into a graph is left alone: a graph is no place to look at results.
    """

    def spoil(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if not on_device(result) or torch.sim.is_current_stream_capturing():  # type: ignore[attr-defined]
            return result
        with torch.no_grad():
            other = change(result, args)
            if other is None:
                return result
            return result.copy_(other) if args and result is args[0] else other

    return spoil


def replaced(owner: Any, **members: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Attributes of a class or module become what ``member(old)`` gives."""

    @contextmanager
    def context() -> Any:
        with ExitStack() as stack:
            for name, change in members.items():
                stack.enter_context(mock.patch.object(owner, name, change(getattr(owner, name))))
            yield

    return context


def together(*contexts: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """All of them, entered in this order."""

    @contextmanager
    def context() -> Any:
        with ExitStack() as stack:
            for one in contexts:
                stack.enter_context(one())
            yield

    return context


def accelerator(**members: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Methods of the accelerator object: ``member(old)`` gets and gives functions that take ``self``."""
    return replaced(TorchAccelerator, **members)


def constructors(change: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Typed constructors: ``change(old)`` gets and gives what makes a constructor of the accelerator and a dtype."""

    def of(dtype: str) -> Callable[[Any], Any]:
        def member(old: Any) -> Any:
            changed = change(lambda self, dtype: old.fget(self))
            return property(lambda self: changed(self, dtype))

        return member

    return replaced(TorchAccelerator, **{name: of(dtype) for dtype, name in CONSTRUCTORS.items()})


def constant(value: Any) -> Callable[[Any], Any]:
    """A member that answers ``value`` to everything."""
    return lambda old: lambda *args, **kwargs: value

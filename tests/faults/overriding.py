"""Other behaviour for an overload's kernel on one dispatch key, of any device, below PyTorch's own part.

A behaviour is called with a ``Call`` in place of the kernel. It works on tensors of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .overloads import bound, schema

Behaviour = Callable[["Call"], Any]


class _Numbers:
    """Calls with numbers in the place of tensors.

    PyTorch hands a number such as the 2 of ``x + 2`` to a Python kernel as a number, and takes none back. Inside an
    operator of the namespace ``prims`` it takes numbers, and marks the tensors that it makes of them as before.
    """

    def __init__(self) -> None:
        self._library = torch.library.Library("prims", "FRAGMENT")
        self._library.define("conformance_fault_call() -> ()")
        self._library.impl("conformance_fault_call", self._run, "CompositeExplicitAutograd")
        self._waiting = threading.local()
        self._operator = torch.ops.prims.conformance_fault_call.default

    def _run(self) -> None:
        # Nothing may keep the call's tensors: that would change when their memory is free.
        work, self._waiting.work = self._waiting.work, None
        self._waiting.result = work()

    def allowed(self, work: Callable[[], Any]) -> Any:
        self._waiting.work = work
        self._operator()
        result, self._waiting.result = self._waiting.result, None
        return result


_NUMBERS: list[_Numbers] = []


class Call:
    """One call of a kernel: its values in the order of the schema, and the true kernel."""

    def __init__(self, kernel: Kernel, keys: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._kernel, self._keys, self._args, self._kwargs = kernel, keys, args, kwargs
        self.values = bound(kernel.arguments, args, kwargs)

    @property
    def arguments(self) -> list[Any]:
        return self._kernel.arguments

    @property
    def name(self) -> str:
        return self._kernel.name

    @property
    def schema(self) -> Any:
        return schema(self._kernel.name)

    def run(self, values: Sequence[Any] | None = None) -> Any:
        """Call the true kernel, with other values if some are given."""
        if values is None:
            return self._kernel.call(self._keys, self._args, self._kwargs)
        pairs = list(zip(self.arguments, values, strict=True))
        args = [value for argument, value in pairs if not argument.kwarg_only]
        # A default may be a number where PyTorch takes a name (a memory format); then it is left out.
        kwargs = {
            argument.name: value
            for argument, value in pairs
            if argument.kwarg_only and (argument.name in self._kwargs or value is not argument.default_value)
        }
        return self._kernel.call(self._keys, args, kwargs)


class Kernel:
    """The true kernel of an overload on a dispatch key, and the behaviour in its place."""

    def __init__(self, name: str, key: str, behaviour: Behaviour) -> None:
        self.name, self.arguments = name, list(schema(name).arguments)
        self._places = [i for i, argument in enumerate(self.arguments) if "Tensor" in str(argument.type.annotation_str)]
        self._kernel = torch.library.get_kernel(name, key)
        self._behaviour, self._inside = behaviour, threading.local()

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        # What a behaviour itself computes with may be the overload that it replaces.
        if getattr(self._inside, "now", False):
            return self.call(keys, args, kwargs)
        self._inside.now = True
        try:
            return self._behaviour(Call(self, keys, args, kwargs))
        finally:
            self._inside.now = False

    def call(self, keys: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if any(i < len(args) and isinstance(args[i], (int, float, complex)) for i in self._places):
            return _NUMBERS[0].allowed(lambda: self._kernel.call_boxed(keys, *args, **kwargs))
        return self._kernel.call_boxed(keys, *args, **kwargs)


def has_kernel(name: str, key: str) -> bool:
    """Return whether an overload has a kernel on a dispatch key."""
    try:
        torch.library.get_kernel(name, key)
    except RuntimeError:
        return False
    return True


@contextmanager
def overridden(behaviours: Mapping[str, Behaviour], key: str) -> Iterator[None]:
    """Give overloads another behaviour on a dispatch key inside the context."""
    if not _NUMBERS:
        _NUMBERS.append(_Numbers())
    libraries = {
        space: torch.library.Library(space, "IMPL") for space in {name.partition("::")[0] for name in behaviours}
    }
    # All true kernels are taken before the first is replaced: some are one fallback.
    kernels = {name: Kernel(name, key, behaviour) for name, behaviour in behaviours.items()}
    try:
        for name, kernel in kernels.items():
            space, _, rest = name.partition("::")
            libraries[space].impl(rest, kernel, key, with_keyset=True, allow_override=True)
        yield
    finally:
        for library in libraries.values():
            library._destroy()


def identity(call: Call) -> Any:
    """Call the true kernel and change nothing."""
    return call.run()


def after(change: Callable[[torch.Tensor], Any]) -> Behaviour:
    """Return a behaviour that changes the kernel's result, or its first one, in place."""

    def behaviour(call: Call) -> Any:
        result = call.run()
        change(result[0] if isinstance(result, tuple) else result)
        return result

    return behaviour

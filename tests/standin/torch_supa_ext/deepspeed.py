"""Importing this registers ``torch.ops.deepspeed.*`` and ``torch.ops.dc.*``, as importing the vendor's module does.

What computes is registered for the vendor's device, and as its own fake kernel, so that a compiled graph may contain
it. What does not compute is registered all the same, takes any arguments, and raises NotImplementedError when it is
called: that a name exists says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
import torch_supa  # noqa: F401 - the operators need its device

from . import layers, names, optimizers, quantizing

#: ``torch.library`` forgets the operators when these are collected.
_deepspeed = torch.library.Library("deepspeed", "FRAGMENT")
_compile = torch.library.Library("dc", "FRAGMENT")

_MOST_ARGUMENTS = 24
_ANYTHING = "(" + ", ".join(f"Any? argument{index}=None" for index in range(_MOST_ARGUMENTS)) + ") -> ()"
#: Functions of Python do not start with an underscore here.
_KERNELS = {"_layer_norm_residual": layers.layer_norm_residual, "_vector_add": layers.vector_add}


def _kernel(name: str) -> Callable[..., object]:
    homes = (home for home in (optimizers, layers, quantizing) if hasattr(home, name))
    return _KERNELS[name] if name in _KERNELS else getattr(next(homes), name)


def _raising(name: str) -> Callable[..., NoReturn]:
    def stub(*_arguments: object) -> NoReturn:
        raise NotImplementedError(f"{name} is not implemented on supa")

    return stub


def _register() -> None:
    for schema in names.SCHEMAS:
        _deepspeed.define(schema)
    for name in names.IMPLEMENTED:
        for key in ("PrivateUse1", "Meta"):  # the kernels are compositions, which work on shapes alone too
            _deepspeed.impl(name, _kernel(name), key)
    for library, stubs in ((_deepspeed, names.STUBS), (_compile, names.COMPILE_STUBS)):
        for name in stubs:
            library.define(name + _ANYTHING)
            library.impl(name, _raising(name), "CompositeImplicitAutograd")


_register()

"""An accelerator on the CPU whose process ends, or never returns, in one arrangement of three operators."""

import faulthandler
import time

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.registry import resolve


def _tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


class Functions(TorchFunctionMode):
    """Crashes where a lazily negated view is added, and hangs where an expanded tensor is an argument of maximum."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "add" and any(tensor.is_neg() for tensor in _tensors(args)):
            faulthandler._sigsegv()
        if name == "maximum" and any(0 in tensor.stride() and tensor.numel() for tensor in _tensors(args)):
            time.sleep(600)
        return function(*args, **(kwargs or {}))


class Kernels(TorchDispatchMode):
    """Divides by zero in the backward of unfold where the gradient is expanded, and cannot add in lists."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        if name.startswith("col2im") and 0 in args[0].stride():
            faulthandler._sigfpe()
        if name.startswith("_foreach_expm1"):
            faulthandler._sigabrt()
        return function(*args, **(kwargs or {}))


class Faulty:
    """The CPU, with faults from the moment it is made."""

    def __init__(self):
        self._cpu = resolve("cpu").load()
        Functions().__enter__()
        Kernels().__enter__()

    def __getattr__(self, name):
        return getattr(self._cpu, name)

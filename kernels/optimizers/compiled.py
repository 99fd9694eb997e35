"""Optimizer steps compiled for the CPU: csrc/optimizers.cpp.

The file is built with OpenMP. If the compiler has none, it is built again without; then one thread does the work.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from conformance.base.errors import SetupError
from conformance.kernels.native import shared_object
from conformance.kernels.optimizers.portable import AdamSettings

_SOURCE = Path(__file__).parent / "csrc" / "optimizers.cpp"
_WHO, _WITHOUT = "the compiled optimizer kernel", "PyTorch's operators do the work without it"
#: Compilers do not vectorize a square root that sets errno, or a comparison that may trap.
_FLAGS = ("-fno-math-errno", "-fno-trapping-math")
#: The compiled library's numbers for dtypes.
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class _StepSettings(ctypes.Structure):
    # The fields are those of Settings in optimizers.cpp, in its order.
    _fields_ = (
        *((name, ctypes.c_double) for name in ("rate", "beta1", "beta2", "epsilon", "decay", "first", "second")),
        ("decoupled", ctypes.c_int32),
    )


class _Arrays(ctypes.Structure):
    # The fields are those of Arrays in optimizers.cpp, in its order.
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "pgmv"),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("parameters", "state", "threads")),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library. Raises SetupError if it cannot be built."""
    try:
        loaded = shared_object(_SOURCE, _WHO, _WITHOUT, (*_FLAGS, "-fopenmp"))
    except SetupError:
        # Some compilers lack OpenMP, as Apple's; the kernel then runs in one thread.
        loaded = shared_object(_SOURCE, _WHO, _WITHOUT, _FLAGS)
    for name in ("adam", "adam_back", "adagrad", "lion"):
        function = getattr(loaded, name)
        function.argtypes, function.restype = [ctypes.POINTER(_Arrays), ctypes.POINTER(_StepSettings)], ctypes.c_int
    return loaded


def threads() -> bool:
    """Return True if the library was built with OpenMP."""
    return bool(library().has_threads())


def adam(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, settings: AdamSettings) -> None:
    """Make one step of Adam or AdamW, in place."""
    _run("adam", (parameter, gradient, mean, square), _of_adam(settings))


def adam_back(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, settings: AdamSettings) -> None:
    """Undo the step that ``adam`` made with the same gradient and settings, in place."""
    _run("adam_back", (parameter, gradient, mean, square), _of_adam(settings))


def adagrad(parameter: Tensor, gradient: Tensor, total: Tensor, lr: float, epsilon: float, weight_decay: float) -> None:
    """Make one step of Adagrad, in place."""
    settings = _StepSettings(lr, 0.0, 0.0, epsilon, weight_decay, 1.0, 1.0, 0)
    _run("adagrad", (parameter, gradient, None, total), settings)


def lion(
    parameter: Tensor, gradient: Tensor, mean: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """Make one step of Lion, in place."""
    settings = _StepSettings(lr, beta1, beta2, 0.0, weight_decay, 1.0, 1.0, 1)
    _run("lion", (parameter, gradient, mean, None), settings)


def _of_adam(settings: AdamSettings) -> _StepSettings:
    numbers = (settings.lr, settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay)
    return _StepSettings(*numbers, *settings.corrections, int(settings.decoupled))


def _run(name: str, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None], settings: _StepSettings) -> None:
    """Call the compiled function ``name`` with parameter, gradient, mean and square.

    The tensors are contiguous, on the host and of one size. Mean and square have one dtype; one of them may be None.
    """
    parameter, state = tensors[0], tensors[2] if tensors[2] is not None else tensors[3]
    assert state is not None
    arrays = _Arrays(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        parameter.numel(),
        _TYPES[parameter.dtype],
        _TYPES[state.dtype],
        torch.get_num_threads(),
    )
    status = getattr(library(), name)(ctypes.byref(arrays), ctypes.byref(settings))
    if status:
        raise TypeError(f"{name} does not support {parameter.dtype} parameters and {state.dtype} state")

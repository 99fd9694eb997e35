"""Triton kernels for specifications: available if the accelerator declares Triton and a trial kernel runs.

Triton is imported only when such a kernel is loaded. It may be missing, may have no code generator for the device, or
may find no compiler for its launchers. Only a launch shows this, so a kernel of one block runs first.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from conformance.accelerators.capabilities import TRITON
from conformance.base.errors import SetupError
from conformance.kernels.specification import Native

WHAT = "a Triton kernel compiled for this device"
_PACKAGE = "conformance.kernels.triton"
_WITHOUT = "the portable reference computes without it"


def triton_kernel(family: str, name: str, dtypes: Iterable[str] = ()) -> Native:
    """Return the implementation ``name`` of ``kernels/triton/<family>.py``, for accelerators that declare Triton."""
    load = functools.partial(_function, family, name)
    return Native(load, WHAT, devices=frozenset(), dtypes=frozenset(dtypes), needs=TRITON, trial=try_on)


def _function(family: str, name: str) -> Callable[..., Any]:
    """Return the function ``name`` of a module of kernels. Raises ``SetupError`` without Triton."""
    try:
        module = importlib.import_module(f"{_PACKAGE}.{family}")
    except ImportError as error:
        raise SetupError(
            f"Triton kernels need the package triton, which cannot be imported: {error}; {_WITHOUT}"
        ) from None
    function: Callable[..., Any] = getattr(module, name)
    return function


@functools.cache
def try_on(device_type: str) -> None:
    """Run the trial kernel on that device type. Raises SetupError if it fails or writes wrong numbers."""
    blocks = _function("trial", "blocks_written")
    try:
        with warnings.catch_warnings():
            # Triton warns about its own settings at its first launch. Where warnings are errors, that is no failure.
            warnings.simplefilter("default")
            written = blocks(device_type)
    except Exception as error:  # noqa: BLE001 - each target's compiler and driver has exceptions of its own
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SetupError(f"Triton refuses a kernel of one block on {device_type}: {first}; {_WITHOUT}") from None
    if written != [1, 2, 3, 0]:
        raise SetupError(f"Triton's kernel of one block on {device_type} wrote {written}, not [1, 2, 3, 0]; {_WITHOUT}")

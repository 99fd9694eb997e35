"""How a specification offers a Triton kernel: by what the accelerator declares, and after a trial on its device.

Triton is imported when such a kernel is loaded, never before. It may be missing, have no code generator for the device,
or find no compiler for its own launchers, and only a launch tells: a kernel of one block is tried first.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from conformance.accelerators.capabilities import TRITON
from conformance.errors import SetupError
from conformance.kernels.specification import Native

WHAT = "a Triton kernel compiled for this device"
_PACKAGE = "conformance.kernels.triton"
_WITHOUT = "the portable reference computes without it"


def triton_kernel(family: str, name: str, dtypes: Iterable[str] = ()) -> Native:
    """The function ``name`` of ``kernels/triton/<family>.py``, on the devices that declare Triton."""
    load = functools.partial(_function, family, name)
    return Native(load, WHAT, devices=frozenset(), dtypes=frozenset(dtypes), needs=TRITON, trial=try_on)


def _function(family: str, name: str) -> Callable[..., Any]:
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
    """Run the smallest kernel on such a device. Raises SetupError, with a sentence, where it does not run rightly."""
    blocks = _function("trial", "blocks_written")
    try:
        with warnings.catch_warnings():
            # What Triton says about its own settings at its first launch is no refusal, also where warnings are errors.
            warnings.simplefilter("default")
            written = blocks(device_type)
    except Exception as error:  # noqa: BLE001 - each target's compiler and driver has exceptions of its own
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SetupError(f"Triton refuses a kernel of one block on {device_type}: {first}; {_WITHOUT}") from None
    if written != [1, 2, 3, 0]:
        raise SetupError(f"Triton's kernel of one block on {device_type} wrote {written}, not [1, 2, 3, 0]; {_WITHOUT}")

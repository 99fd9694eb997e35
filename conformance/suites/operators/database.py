"""PyTorch's operator database (OpInfo), imported once and only when an operator case runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import warnings


@functools.cache
def database() -> dict[str, object]:
    """Full name → OpInfo, in the database's order. Takes seconds the first time in a process."""
    # The database's import reads these; a value meant for PyTorch's own tests would change the list.
    for name in ("PYTORCH_TEST_CUDA_MEM_LEAK_CHECK", "PYTORCH_TEST_WITH_SLOW"):
        os.environ.pop(name, None)
    import torch

    from .seeding import seed_generation

    # Half a million objects that live as long as the process: looking through them for garbage takes seconds.
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about test tools that are not installed; nobody here needs them
        from torch.testing._internal import common_utils

        with _without_scipy(common_utils):
            from torch.testing._internal import common_methods_invocations
            from torch.testing._internal.opinfo import core

    # It looks for the calling test on the stack at every sample, which takes longer than most cells do.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    common_utils.set_rng_seed = seed_generation
    # The database seeds its random operators inside the call, which would hide from us that they are random.
    common_methods_invocations.wrapper_set_seed = _unwrapped
    # That import forbids assignments like torch.backends.cudnn.enabled = False in the whole process.
    setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
    gc.freeze()
    gc.enable()
    return {info.full_name: info for info in common_methods_invocations.op_db}


@contextlib.contextmanager
def _without_scipy(common_utils):
    """Let the import be the same with SciPy and without it.

    A third of its time would be SciPy's, for references of PyTorch's own tests, which nobody asks for here.
    """
    installed, common_utils.TEST_SCIPY = common_utils.TEST_SCIPY, False
    try:
        yield
    finally:
        common_utils.TEST_SCIPY = installed


def _unwrapped(op, *args, **kwargs):
    return op(*args, **kwargs)


def runs_on_cuda_only(info) -> bool:
    """Whether the database claims dtypes for the CPU that only NVIDIA's compiler can serve (the jiterator)."""
    from torch.testing._internal.common_device_type import onlyCUDA

    return onlyCUDA in info.decorators


def find(full_name: str) -> object:
    return database()[full_name]

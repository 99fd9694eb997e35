"""PyTorch's operator database (OpInfo), imported once and only when an operator case runs."""

from __future__ import annotations

import functools
import os


@functools.cache
def database() -> dict[str, object]:
    """Full name → OpInfo, in the database's order. Takes seconds the first time in a process."""
    # The database's import reads these; a value meant for PyTorch's own tests would change the list.
    for name in ("PYTORCH_TEST_CUDA_MEM_LEAK_CHECK", "PYTORCH_TEST_WITH_SLOW"):
        os.environ.pop(name, None)
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    # That import forbids assignments like torch.backends.cudnn.enabled = False in the whole process.
    setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
    return {info.full_name: info for info in op_db}


def find(full_name: str) -> object:
    return database()[full_name]

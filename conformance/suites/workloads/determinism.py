"""PyTorch's deterministic mode for cases that compare bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic(monkeypatch: Any) -> Iterator[None]:
    """Allow only kernels that repeat their bits.

    The variable is part of this mode: if a matrix library splits sums over a workspace,
    torch.use_deterministic_algorithms refuses products until the variable is set (see torch's documentation).
    """
    with monkeypatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

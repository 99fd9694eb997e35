"""PyTorch's deterministic mode, for the time of a case that compares bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic(monkeypatch: Any) -> Iterator[None]:
    """Only kernels that repeat their bits. The variable belongs to this mode: where a product library splits sums
    over a workspace, torch.use_deterministic_algorithms refuses products until it is set (torch's documentation)."""
    with monkeypatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

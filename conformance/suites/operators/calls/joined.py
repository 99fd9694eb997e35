"""An operator between others that a compiler joins with it in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

#: Dtypes that every device turns which has the operator at all; PyTorch's CPU turns no unsigned numbers.
TURNED: Final = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool,
)  # fmt: skip


@dataclass(frozen=True)
class Joined:
    """An operator between others: its inputs of one dtype are products with 1, and its results are turned.

    ``backend`` is the one of ``torch.compile`` that joins them.
    """

    function: Callable[..., Any]
    backend: Any = None

    def __call__(self, *args: Any, one: torch.Tensor, **kwargs: Any) -> Any:
        """Call the operator with computed inputs, and return its results with their last dimension turned.

        ``one`` is a tensor without dimensions: it gives the dtype of the inputs that are computed.
        """

        def product(leaf: Any) -> Any:
            return leaf * one if isinstance(leaf, torch.Tensor) and leaf.dtype == one.dtype else leaf

        return traced(self.function(*traced(args, product), **traced(kwargs, product)), turned)


def traced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a structure with ``change`` applied to every leaf, as a compiler traces it. Tuples become lists."""
    if isinstance(value, (tuple, list)):
        return [traced(item, change) for item in value]
    if isinstance(value, dict):
        return {key: traced(item, change) for key, item in value.items()}
    return change(value)


def turned(leaf: Any) -> Any:
    """Return a tensor of ``TURNED`` with its last dimension in reverse order; another value as it is."""
    return leaf.flip(-1) if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.dtype in TURNED else leaf

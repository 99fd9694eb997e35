"""Calls of the fused kernels of optimizers that no step of ``torch.optim`` makes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.numerics.nearness import Near, near
from conformance.numerics.trees import mapped

_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)


class Kept(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Keeps a copy of the arguments of the last call of a fused kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.function: Any = None
        self._arguments: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call, and keep its arguments as they were before."""
        kwargs = kwargs or {}
        if func.name().startswith("aten::_fused_"):
            self.function, self._arguments = func, mapped([list(args), kwargs], _copied)
        return func(*args, **kwargs)

    def called(self, change: Any = None) -> list[torch.Tensor]:
        """Return the parameters after the same call; ``change`` maps each gradient."""
        args, kwargs = mapped(self._arguments, _copied)
        if change is not None:
            args[1] = [change(gradient) for gradient in args[1]]
        self.function(*args, **kwargs)
        return list(args[0])


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def check_other_gradients(check: Any, name: str, kept: Kept) -> None:
    """Check that gradients in float64 for parameters in float32 are refused, or move the parameters as usual."""
    try:
        found = [tensor.cpu() for tensor in kept.called(torch.Tensor.double)]  # a device may refuse late
    except _REFUSALS:
        return
    for i, (actual, right) in enumerate(zip(found, kept.called(), strict=True)):
        label = f"{name}: parameter {i} after a fused step with gradients in float64, which PyTorch refuses"
        near(check, label, actual, right.cpu().double(), Near.TRAJECTORY, by_device=True)

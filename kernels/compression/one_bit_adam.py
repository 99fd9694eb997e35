"""1-bit Adam."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from conformance.kernels.compression.optimizer import Group, OneBitOptimizer, Parameters, moments, update_of


class OneBitAdam(OneBitOptimizer):
    """Adam for ``freeze_step`` steps; then the second moment stays, and only the first is communicated, compressed.

    Tang et al., 2021, arXiv:2102.02888, algorithm 1. In the warm-up gradients are averaged exactly. Afterwards each
    rank updates the averaged moment with its own gradient, and the compressed mean of the results is every rank's next
    moment.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        freeze_step: int = 100_000,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """``freeze_step`` counts steps, ``group`` None is all ranks. Raises UsageError for numbers out of range."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "freeze_step": freeze_step}
        super().__init__(params, defaults, group)

    def _update(self) -> None:
        for group, parameter in self._parameters():
            self._update_one(group, parameter)

    def _update_one(self, group: Group, parameter: Tensor) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        moment, square = moments(state, parameter)
        state["step"] = state.get("step", 0) + 1
        gradient = self._gradient(parameter)
        if state["step"] <= group["freeze_step"]:
            gradient = self._mean(gradient)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            moment.mul_(beta1).add_(gradient, alpha=1 - beta1)
        else:
            moment.mul_(beta1).add_(gradient, alpha=1 - beta1)
            self._compress(moment, group, state)
        parameter.add_(update_of(moment, square, parameter, group), alpha=-group["lr"])

"""1-bit Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from conformance.kernels.compression.optimizer import (
    CommonOptions,
    Group,
    OneBitOptimizer,
    Parameters,
    moments,
    update_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


class OneBitAdam(OneBitOptimizer):
    """Optimizer that runs Adam for ``freeze_step`` steps, then freezes the second moment and compresses the first.

    Tang et al., 2021, arXiv:2102.02888, algorithm 1. In the warm-up, gradients are averaged exactly. Afterwards each
    rank updates the averaged moment with its own gradient. The compressed mean of the results is every rank's next
    moment.
    """

    def __init__(
        self, params: Parameters, lr: float = 1e-3, *, freeze_step: int = 100_000, **common: Unpack[CommonOptions]
    ) -> None:
        """Make an optimizer that freezes after ``freeze_step`` steps. Raises UsageError for numbers out of range."""
        super().__init__(params, {"freeze_step": freeze_step}, lr, **common)

    def _update(self) -> None:
        for group, parameter in self._parameters():
            self._update_one(group, parameter)

    def _update_one(self, group: Group, parameter: Tensor) -> None:
        """Update one parameter: with Adam while warming up, then with the frozen second moment."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        moment, square = moments(state, parameter)
        # Counted before it is compared, so ``freeze_step`` steps are taken with plain Adam.
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

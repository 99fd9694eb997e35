"""0/1 Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from conformance.kernels.compression.optimizer import (
    CommonOptions,
    Group,
    OneBitOptimizer,
    Parameters,
    State,
    moments,
    update_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


class ZeroOneAdam(OneBitOptimizer):
    """Adam that updates its second moment at growing intervals, then freezes it and synchronizes at growing intervals.

    Lu et al., 2022, arXiv:2202.06009, with DeepSpeed's schedule.

    Up to step ``var_freeze_step`` all ranks make the same steps. Every ``var_interval`` steps, exactly averaged
    gradients update both moments. In the other steps, their compressed mean updates the first moment only. The interval
    doubles after ``var_update_scaler`` updates of the second moment.

    Afterwards each rank steps on its own and adds up its updates, so the ranks' parameters differ for a time. Every
    ``local_step_interval`` steps the compressed mean of the sums replaces them, and also gives the first moment. That
    interval doubles after ``local_step_scaler`` steps, up to ``local_step_clipper``.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        *,
        var_freeze_step: int = 100_000,
        var_update_scaler: int = 16,
        local_step_scaler: int = 32_678,
        local_step_clipper: int = 16,
        **common: Unpack[CommonOptions],
    ) -> None:
        """Make an optimizer with this schedule, counted in steps. Raises UsageError for numbers out of range."""
        schedule = {
            "var_freeze_step": var_freeze_step,
            "var_update_scaler": var_update_scaler,
            "local_step_scaler": local_step_scaler,
            "local_step_clipper": local_step_clipper,
        }
        super().__init__(params, schedule, lr, **common)

    def _update(self) -> None:
        """Update all parameters, each by the phase that its own step count has reached."""
        for group, parameter in self._parameters():
            state = self.state[parameter]
            if not state:
                state.update(
                    step=0, var_interval=1, var_counter=0, local_step_interval=1, local_step_counter=0, lrs=0.0
                )
                state["accumulated"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state["step"] += 1
            if state["step"] <= group["var_freeze_step"]:
                self._common_step(group, parameter, state)
            else:
                self._local_step(group, parameter, state)

    def _common_step(self, group: Group, parameter: Tensor, state: State) -> None:
        """Make a step before the freeze, the same on all ranks."""
        beta1, beta2 = group["betas"]
        moment, square = moments(state, parameter)
        renews = state["step"] % state["var_interval"] == 0
        # A copy, because compression works in place and the gradient is the caller's.
        gradient = self._gradient(parameter).clone(memory_format=torch.contiguous_format)
        if renews:
            gradient = self._mean(gradient)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        else:
            self._compress(gradient, group, state)
        moment.mul_(beta1).add_(gradient, alpha=1 - beta1)
        parameter.add_(update_of(moment, square, parameter, group), alpha=-group["lr"])
        state["var_counter"] += renews
        if state["var_counter"] == group["var_update_scaler"]:
            state.update(var_counter=0, var_interval=2 * state["var_interval"])
        if state["step"] == group["var_freeze_step"]:
            self._forget(state)  # this feedback is of gradients; from now on updates are compressed

    def _local_step(self, group: Group, parameter: Tensor, state: State) -> None:
        """Make a step after the freeze with this rank's own gradient, and synchronize the ranks if it is time."""
        beta1, _ = group["betas"]
        moment, square = moments(state, parameter)
        moment.mul_(beta1).add_(self._gradient(parameter), alpha=1 - beta1)
        change = -group["lr"] * update_of(moment, square, parameter, group)
        parameter.add_(change)
        state["accumulated"].add_(change)
        # The sum of the rates turns the sum of the updates back into a moment; see _synchronize.
        state["lrs"] += group["lr"]
        if state["step"] % state["local_step_interval"] == 0:
            self._synchronize(group, parameter, state)
        state["local_step_counter"] += 1
        if state["local_step_counter"] == group["local_step_scaler"]:
            longer = min(group["local_step_clipper"], 2 * state["local_step_interval"])
            state.update(local_step_counter=0, local_step_interval=longer)

    def _synchronize(self, group: Group, parameter: Tensor, state: State) -> None:
        """Replace the updates that this rank has added up by the compressed mean of all ranks' sums."""
        moment, square = moments(state, parameter)
        accumulated, root = state["accumulated"], square.sqrt() + group["eps"]
        parameter.sub_(accumulated)
        # In the first moment's scale elements have similar magnitudes, and the compressor has one scale for all.
        accumulated.mul_(root)
        self._compress(accumulated, group, state)
        if state["lrs"] > 0:  # steps with a learning rate of 0 move nothing, so they say nothing about the moment
            moment.copy_(accumulated / -state["lrs"])
        parameter.add_(accumulated / root)
        accumulated.zero_()
        state["lrs"] = 0.0

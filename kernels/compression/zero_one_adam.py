"""0/1 Adam."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.kernels.compression.optimizer import (
    Group,
    OneBitOptimizer,
    Parameters,
    State,
    moments,
    update_of,
)


class ZeroOneAdam(OneBitOptimizer):
    """Adam whose second moment is renewed ever more rarely, then never, and which then communicates ever more rarely.

    Lu et al., 2022, arXiv:2202.06009, with DeepSpeed's schedule. Up to step ``var_freeze_step``: every ``var_interval``
    steps gradients are averaged exactly and renew both moments, else their compressed mean renews the first; after
    ``var_update_scaler`` renewals the interval doubles. Then ranks step on their own and add up their updates, and
    every ``local_step_interval`` steps the compressed mean of the sums replaces them and gives the first moment; after
    ``local_step_scaler`` steps that interval doubles, up to ``local_step_clipper``. Between two of these the ranks'
    parameters differ.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        var_freeze_step: int = 100_000,
        var_update_scaler: int = 16,
        local_step_scaler: int = 32_678,
        local_step_clipper: int = 16,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """All of the schedule counts steps, ``group`` None is all ranks. Raises UsageError for numbers out of range."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        schedule = {
            "var_freeze_step": var_freeze_step,
            "var_update_scaler": var_update_scaler,
            "local_step_scaler": local_step_scaler,
            "local_step_clipper": local_step_clipper,
        }
        super().__init__(params, {**defaults, **schedule}, group)

    def _update(self) -> None:
        for group, parameter in self._parameters():
            state = self.state[parameter]
            if not state:
                state.update(
                    step=0, var_interval=1, var_counter=0, local_step_interval=1, local_step_counter=0, lrs=0.0
                )
                state["accumulated"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state["step"] += 1
            if state["step"] <= group["var_freeze_step"]:
                self._together(group, parameter, state)
            else:
                self._alone(group, parameter, state)

    def _together(self, group: Group, parameter: Tensor, state: State) -> None:
        """A step before the freeze: all ranks make the same one."""
        beta1, beta2 = group["betas"]
        moment, square = moments(state, parameter)
        renews = state["step"] % state["var_interval"] == 0
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
            self._forget(state)  # it is of gradients, and what follows are updates

    def _alone(self, group: Group, parameter: Tensor, state: State) -> None:
        """A step after the freeze: by this rank's own gradient, and perhaps then together."""
        beta1, _ = group["betas"]
        moment, square = moments(state, parameter)
        moment.mul_(beta1).add_(self._gradient(parameter), alpha=1 - beta1)
        change = -group["lr"] * update_of(moment, square, parameter, group)
        parameter.add_(change)
        state["accumulated"].add_(change)
        state["lrs"] += group["lr"]
        if state["step"] % state["local_step_interval"] == 0:
            self._synchronize(group, parameter, state)
        state["local_step_counter"] += 1
        if state["local_step_counter"] == group["local_step_scaler"]:
            longer = min(group["local_step_clipper"], 2 * state["local_step_interval"])
            state.update(local_step_counter=0, local_step_interval=longer)

    def _synchronize(self, group: Group, parameter: Tensor, state: State) -> None:
        """Replace what this rank has added up by the compressed mean of all ranks' sums."""
        moment, square = moments(state, parameter)
        accumulated, root = state["accumulated"], square.sqrt() + group["eps"]
        parameter.sub_(accumulated)
        accumulated.mul_(root)  # in the moment's own scale all elements are alike, as a compressor wants it
        self._compress(accumulated, group, state)
        if state["lrs"] > 0:  # a learning rate of 0 moved nothing, and tells nothing about the moment
            moment.copy_(accumulated / -state["lrs"])
        parameter.add_(accumulated / root)
        accumulated.zero_()
        state["lrs"] = 0.0

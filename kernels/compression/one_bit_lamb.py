"""1-bit LAMB."""

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


class OneBitLamb(OneBitOptimizer):
    """Optimizer that runs LAMB for ``freeze_step`` steps, then communicates compressed first moments only.

    Li et al., 2021, arXiv:2104.06069, algorithm 1. In the warm-up, gradients are averaged exactly. The trust ratio
    |p| / |update| is clamped to [``min_coeff``, ``max_coeff``], and its moving average is kept.

    Afterwards all first moments are communicated as one tensor, each scaled to the same root mean square. The gradient
    that explains the new moment updates a second moment, ``exp_avg_sq_fresh``. The trust ratio is then the kept average
    times a factor: the largest ratio of the frozen moment's root to the fresh one's. The factor stays within
    [``factor_min``, ``factor_max``], and changes by at most a share of ``factor_threshold`` in one step.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        *,
        freeze_step: int = 100_000,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        coeff_beta: float = 0.9,
        factor_max: float = 4.0,
        factor_min: float = 0.5,
        factor_threshold: float = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        """Make an optimizer that freezes after ``freeze_step`` steps. Raises UsageError for numbers out of range."""
        specific = {
            "freeze_step": freeze_step,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
            "coeff_beta": coeff_beta,
            "factor_max": factor_max,
            "factor_min": factor_min,
            "factor_threshold": factor_threshold,
        }
        super().__init__(params, specific, lr, **common)

    def _update(self) -> None:
        """Update all parameters. Frozen ones are collected first, because they share one communication."""
        frozen: list[tuple[Group, Tensor, State]] = []
        for group, parameter in self._parameters():
            state = self.state[parameter]
            if not state:
                state.update(step=0, lamb_coeff_freeze=0.0, last_factor=1.0, scaling_coeff=1.0)
            state["step"] += 1
            if state["step"] <= group["freeze_step"]:
                self._warm_up(group, parameter, state)
            else:
                frozen.append((group, parameter, state))
        if frozen:
            self._compressed(frozen)

    def _warm_up(self, group: Group, parameter: Tensor, state: State) -> None:
        """Update a parameter with LAMB and average its trust ratio for the compressed steps."""
        beta1, beta2 = group["betas"]
        moment, square = moments(state, parameter)
        gradient = self._mean(self._gradient(parameter))
        moment.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = update_of(moment, square, parameter, group)
        coeff = _trust_ratio(parameter, update, group)
        if coeff != 1.0:  # _trust_ratio returns 1 where there is no ratio; that does not count in the average
            kept = group["coeff_beta"] * state["lamb_coeff_freeze"] + (1 - group["coeff_beta"]) * coeff
            state["lamb_coeff_freeze"] = kept
        parameter.add_(update, alpha=-group["lr"] * coeff)
        if state["step"] == group["freeze_step"]:
            # From here on the true second moment goes on in "exp_avg_sq_fresh", and "exp_avg_sq" stays frozen.
            state["exp_avg_sq_fresh"] = square.clone()

    def _compressed(self, frozen: list[tuple[Group, Tensor, State]]) -> None:
        """Update first moments, communicate them compressed, and step with the result."""
        # Once, before the first compressed step: the scales bring the moments of all parameters to one size.
        if any("scaled" not in state for _, _, state in frozen):
            _set_scales([state for _, _, state in frozen])
        before = [state["exp_avg"].clone() for _, _, state in frozen]
        for group, parameter, state in frozen:
            beta1, _ = group["betas"]
            state["exp_avg"].mul_(beta1).add_(self._gradient(parameter), alpha=1 - beta1)
        self._communicate(frozen)
        for (group, parameter, state), last in zip(frozen, before, strict=True):
            self._step_with(last, group, parameter, state)

    def _communicate(self, frozen: list[tuple[Group, Tensor, State]]) -> None:
        """Replace all first moments by their compressed mean: one tensor, with the first parameter's feedback."""
        flat = torch.cat([(state["exp_avg"] * state["scaling_coeff"]).view(-1) for _, _, state in frozen])
        self._compress(flat, {"mask": None}, frozen[0][2])  # each parameter's mask is applied after the split
        for part, (group, _, state) in zip(torch.split(flat, [p.numel() for _, p, _ in frozen]), frozen, strict=True):
            state["exp_avg"].copy_(part.view_as(state["exp_avg"]) / state["scaling_coeff"])
            if group["mask"] is not None:
                state["exp_avg"].mul_(group["mask"])

    def _step_with(self, last: Tensor, group: Group, parameter: Tensor, state: State) -> None:
        """Update one parameter with the frozen trust ratio, corrected by the change of the second moment."""
        beta1, beta2 = group["betas"]
        moment, fresh = state["exp_avg"], state["exp_avg_sq_fresh"]
        # The mean gradient was not communicated, so it is computed from the moment before and after.
        rebuilt = (moment - last * beta1) / (1 - beta1)
        fresh.mul_(beta2).addcmul_(rebuilt, rebuilt, value=1 - beta2)
        update = update_of(moment, state["exp_avg_sq"], parameter, group)
        coeff = state["lamb_coeff_freeze"] * _factor(update, group, state)
        parameter.add_(update, alpha=-group["lr"] * coeff)


def _trust_ratio(parameter: Tensor, update: Tensor, group: Group) -> float:
    """Return the norm of the parameter over that of the update, within the group's limits; 1 if a norm is 0."""
    weight, change = (float(torch.linalg.vector_norm(tensor)) for tensor in (parameter, update))
    if weight == 0 or change == 0:
        return 1.0
    return float(min(group["max_coeff"], max(group["min_coeff"], weight / change)))


def _set_scales(states: list[State]) -> None:
    """Set each state's factor that scales its first moment to the mean root mean square of all; 1 for a moment of 0.

    A factor is set once and then kept.
    """
    roots = [float(torch.linalg.vector_norm(state["exp_avg"])) / state["exp_avg"].numel() ** 0.5 for state in states]
    mean_root = sum(roots) / len(roots)
    for state, root in zip(states, roots, strict=True):
        if "scaled" not in state:
            state.update(scaling_coeff=mean_root / root if root > 0 else 1.0, scaled=True)


def _factor(update: Tensor, group: Group, state: State) -> float:
    """Return how much the trust ratio has changed since the freeze, and keep it in ``state`` for the next step."""
    frozen_root, fresh_root = (state[name].sqrt() + group["eps"] for name in ("exp_avg_sq", "exp_avg_sq_fresh"))
    factor = float((frozen_root / fresh_root).max())
    if group["weight_decay"] > 0:
        ratio = torch.linalg.vector_norm(state["exp_avg"] / frozen_root) / torch.linalg.vector_norm(update)
        share = min(1.0, float(ratio))
        factor = factor * share + (1 - share)
    last, threshold = state["last_factor"], group["factor_threshold"]
    factor = min(group["factor_max"], max(group["factor_min"], factor))
    factor = float(min(last * (1 + threshold), max(last * (1 - threshold), factor)))
    state["last_factor"] = factor
    return factor

"""What the one-bit optimizers share: their arguments, their ranks' gradients, and compressed tensors in their state.

Unlike DeepSpeed's, they need no engine: they average gradients themselves where the algorithm does, they take their
first step, and a saved state goes on exactly, with its error feedback.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from conformance.errors import UsageError
from conformance.kernels.compression.all_reduce import CompressedAllReduce, Feedback

Group = dict[str, Any]
State = dict[str, Any]
_FEEDBACK = ("worker_error", "server_error")


class OneBitOptimizer(Optimizer, abc.ABC):
    """Parameters are float32 and equal on all ranks, and stay so; gradients are each rank's own, averaged by nobody.

    A missing gradient counts as zeros, because all ranks take part in every collective. A parameter group may hold
    ``mask``, a tensor of 0 and 1 of its parameters' shape: where 0, compressed tensors are kept at 0. It is for
    elements that never get a gradient, whose frozen second moment of 0 would turn the compressor's ±scale into a huge
    step.
    """

    def __init__(self, params: Any, defaults: Group, group: dist.ProcessGroup | None) -> None:
        _check_numbers(defaults)
        self._wire = CompressedAllReduce(group)
        self._process_group = group
        super().__init__(params, {**defaults, "mask": None})

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent to others in compressed calls."""
        return self._wire.bytes_sent

    def add_param_group(self, param_group: Group) -> None:
        """As PyTorch's. Raises UsageError for a parameter that is not float32 and for a number out of its range."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        wrong = [p for p in added["params"] if p.dtype is not torch.float32]
        if wrong:
            self.param_groups.pop()
            raise UsageError(
                f"{type(self).__name__} takes float32 parameters; one of shape {tuple(wrong[0].shape)} is "
                f"{wrong[0].dtype}.\n  keep float32 copies, and cast for the forward pass"
            )
        _check_numbers(added)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all ranks; the closure's value.

        Raises UsageError, with nothing changed, for a sparse gradient and for a mask of another shape.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, parameter in self._parameters():
            _check_tensors(type(self).__name__, group, parameter)
        self._update()
        return loss

    @abc.abstractmethod
    def _update(self) -> None:
        """Change the parameters."""

    def _parameters(self) -> Iterator[tuple[Group, Tensor]]:
        """Every parameter with an element, with its group."""
        for group in self.param_groups:
            yield from ((group, parameter) for parameter in group["params"] if parameter.numel())

    def _gradient(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def _mean(self, tensor: Tensor) -> Tensor:
        """The exact mean over ranks."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self._process_group)
        return total / self._wire.world_size

    def _compress(self, tensor: Tensor, group: Group, state: State) -> None:
        """Replace ``tensor`` by its compressed mean, with the feedback in ``state``; one rank has nobody to send to."""
        if self._wire.world_size == 1:
            return
        padded = self._wire.padded(tensor.numel())
        sizes = [state[name].numel() for name in _FEEDBACK if name in state]
        if sizes != [padded, padded // self._wire.world_size]:
            # None yet, or a loaded one of another number of ranks, which belongs to nobody here.
            zeros = self._wire.feedback(tensor)
            state.update(zip(_FEEDBACK, (zeros.worker, zeros.server), strict=True))
        self._wire.all_reduce(tensor, Feedback(*(state[name] for name in _FEEDBACK)))
        if group["mask"] is not None:
            tensor.mul_(group["mask"])

    def _forget(self, state: State) -> None:
        """Start feedback again from zeros."""
        for name in _FEEDBACK:
            state.pop(name, None)


def _check_tensors(who: str, group: Group, parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        raise UsageError(f"{who} takes dense gradients.\n  make the layer's gradient dense")
    mask = group["mask"]
    if mask is not None and mask.shape != parameter.shape:
        raise UsageError(
            f"the mask has shape {tuple(mask.shape)}, and a parameter of its group {tuple(parameter.shape)}.\n"
            "  give parameters with a mask a group of their own"
        )


def _check_numbers(values: Group) -> None:
    positive = ("eps", "freeze_step", "var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper")
    for name in (*positive, "lr", "weight_decay"):
        low = "above 0" if name in positive else "0 or above"
        value = values.get(name, 1)
        if not (value > 0 if name in positive else value >= 0):
            raise UsageError(f"{name} is {value}.\n  give a number {low}")
    for beta in (*values.get("betas", ()), values.get("coeff_beta", 0.0)):
        if not 0 <= beta < 1:
            raise UsageError(f"a beta is {beta}.\n  give numbers of at least 0 and below 1")


def moments(state: State, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """First and second moment, zeros at first."""
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return state["exp_avg"], state["exp_avg_sq"]


def update_of(moment: Tensor, square: Tensor, parameter: Tensor, group: Group) -> Tensor:
    """m / (sqrt(v) + eps) + weight_decay × p: no bias correction, and decay beside the ratio."""
    ratio: Tensor = moment / (square.sqrt() + group["eps"])
    return ratio.add(parameter, alpha=group["weight_decay"])


Parameters = Iterable[Tensor] | Iterable[Group]

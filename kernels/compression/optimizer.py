"""Base class of the one-bit optimizers: common options, averaging of gradients, and compressed communication.

Unlike DeepSpeed's, these optimizers need no engine. They average gradients themselves where the algorithm does so, and
their first step updates the parameters. A saved state contains the error feedback, so training resumes with the same
bits.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from conformance.base.errors import UsageError
from conformance.kernels.compression.all_reduce import CompressedAllReduce, Feedback
from conformance.kernels.compression.packing import Packing

Group = dict[str, Any]
State = dict[str, Any]
Parameters = Iterable[Tensor] | Iterable[Group]
_FEEDBACK = ("worker_error", "server_error")


class CommonOptions(TypedDict, total=False):
    """Options of all one-bit optimizers; see ``OneBitOptimizer.__init__`` for the defaults."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    group: dist.ProcessGroup | None
    packing: tuple[Packing, Packing] | None


class OneBitOptimizer(Optimizer, abc.ABC):
    """Optimizer with compressed communication.

    Parameters have to be float32 and equal on all ranks; the optimizer keeps them equal (ZeroOneAdam at each
    synchronization). Gradients are each rank's own: the caller must not average them. A missing gradient counts as
    zeros, because all ranks take part in every collective.

    A parameter group may hold ``mask``, a tensor of 0 and 1 of its parameters' shape: where it is 0, compressed tensors
    are kept at 0. Use it for elements that never get a gradient. Their frozen second moment of 0 would turn the
    compressor's ±scale into a huge step.
    """

    def __init__(
        self,
        params: Any,
        specific: Group,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        group: dist.ProcessGroup | None = None,
        packing: tuple[Packing, Packing] | None = None,
    ) -> None:
        """Check the options and set them as defaults. ``specific`` are the algorithm's own, with their values.

        Gradients are averaged over the ranks of ``group``, all ranks if None. ``packing`` is ``packbits`` and
        ``unpackbits``, this project's fastest kernels if None.

        Raises UsageError for numbers out of range, without a process group, and on a rank outside ``group``.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **specific}
        _check_numbers(defaults)
        self._wire = CompressedAllReduce(group, packing)
        self._process_group = group
        super().__init__(params, {**defaults, "mask": None})

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent to others in compressed calls."""
        return self._wire.bytes_sent

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group. Raises UsageError for a parameter that is not float32 and a number out of range."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        wrong = [p for p in added["params"] if p.dtype is not torch.float32]
        if wrong:
            self.param_groups.pop()  # the base class has added the group already
            raise UsageError(
                f"{type(self).__name__} takes float32 parameters; one of shape {tuple(wrong[0].shape)} is "
                f"{wrong[0].dtype}.\n  keep float32 copies, and cast for the forward pass"
            )
        _check_numbers(added)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step on all ranks; return the closure's value, or None without a closure.

        Raises UsageError, with nothing changed, for a sparse gradient and for a mask of another shape.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All checks come before the first change, so that an error leaves every parameter as it was.
        for group, parameter in self._parameters():
            _check_tensors(type(self).__name__, group, parameter)
        self._update()
        return loss

    @abc.abstractmethod
    def _update(self) -> None:
        """Update the parameters and their state, with the gradients as they are."""

    def _parameters(self) -> Iterator[tuple[Group, Tensor]]:
        """Yield every parameter that has an element, with its group."""
        for group in self.param_groups:
            yield from ((group, parameter) for parameter in group["params"] if parameter.numel())

    def _gradient(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def _mean(self, tensor: Tensor) -> Tensor:
        """Return the uncompressed mean over ranks."""
        # Ranks may have other strides, and a collective sends memory in its own order.
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self._process_group)
        return total / self._wire.world_size

    def _compress(self, tensor: Tensor, group: Group, state: State) -> None:
        """Replace ``tensor`` by its compressed mean, with the feedback in ``state``; do nothing on a single rank."""
        if self._wire.world_size == 1:
            return
        padded = self._wire.padded(tensor.numel())
        sizes = [state[name].numel() for name in _FEEDBACK if name in state]
        if sizes != [padded, padded // self._wire.world_size]:
            # There is no feedback yet, or a loaded one of another number of ranks, which fits none of these ranks.
            zeros = self._wire.feedback(tensor)
            state.update(zip(_FEEDBACK, (zeros.worker, zeros.server), strict=True))
        self._wire.all_reduce(tensor, Feedback(*(state[name] for name in _FEEDBACK)))
        if group["mask"] is not None:
            tensor.mul_(group["mask"])

    def _forget(self, state: State) -> None:
        """Start feedback again from zeros."""
        for name in _FEEDBACK:
            state.pop(name, None)


def _check_tensors(optimizer: str, group: Group, parameter: Tensor) -> None:
    """Raise ``UsageError`` for a sparse gradient, or a mask of another shape than the parameter."""
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        raise UsageError(f"{optimizer} takes dense gradients.\n  make the layer's gradient dense")
    mask = group["mask"]
    if mask is not None and mask.shape != parameter.shape:
        raise UsageError(
            f"the mask has shape {tuple(mask.shape)}, and a parameter of its group {tuple(parameter.shape)}.\n"
            "  give parameters with a mask a group of their own"
        )


def _check_numbers(values: Group) -> None:
    """Raise ``UsageError`` for an option outside its range."""
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
    """Return first and second moment of ``state``; add them as zeros if they are missing."""
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return state["exp_avg"], state["exp_avg_sq"]


def update_of(moment: Tensor, square: Tensor, parameter: Tensor, group: Group) -> Tensor:
    """Return m / (sqrt(v) + eps) + weight_decay × p: no bias correction, and decoupled decay."""
    ratio: Tensor = moment / (square.sqrt() + group["eps"])
    return ratio.add(parameter, alpha=group["weight_decay"])

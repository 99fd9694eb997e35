"""Training loop that runs unchanged on the accelerator, on the host, and on the host in float64."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .data import Batch

#: Maximum gradient norm, as for torch.nn.utils.clip_grad_norm_.
CLIP = 1.0
#: Steps over which the learning rate rises.
WARM_UP_STEPS = 4


@dataclass(frozen=True)
class RunDevice:
    """Device of a run: the accelerator under test, or the host (no accelerator)."""

    device: torch.device
    accelerator: Any = None

    def synchronize(self) -> None:
        """Wait until the device has finished its work; the host has nothing to wait for."""
        if self.accelerator is not None:
            self.accelerator.synchronize()

    def rng_state(self) -> torch.Tensor:
        """Return the state of the device's generator."""
        return torch.get_rng_state() if self.accelerator is None else self.accelerator.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Set the state of the device's generator."""
        if self.accelerator is None:
            torch.set_rng_state(state)
        else:
            self.accelerator.set_rng_state(state)


HOST = RunDevice(torch.device("cpu"))


@dataclass(frozen=True)
class Scheme:
    """Precision scheme of a training run.

    16-bit dtypes keep float32 weights and compute under autocast. float16 multiplies the loss by a fixed power of two,
    so that small gradients do not vanish. A scale that reacts to overflow could differ between two devices.
    """

    storage: torch.dtype
    autocast: torch.dtype | None = None
    loss_scale: float = 1.0


SCHEMES = {
    "float32": Scheme(torch.float32),
    "bfloat16": Scheme(torch.float32, torch.bfloat16),
    "float16": Scheme(torch.float32, torch.float16, loss_scale=1024.0),
}
ORACLE = Scheme(torch.float64)


@dataclass(frozen=True)
class TrainingTask:
    """Model, data and learning rate of a training.

    ``build`` makes a model with the given dropout; ``rate`` is AdamW's learning rate. ``items_per_step`` counts tokens
    or images for the throughput.
    """

    build: Callable[[float], nn.Module]
    batches: Sequence[Batch]
    rate: float
    items_per_step: int

    def initial(self) -> dict[str, torch.Tensor]:
        """Return the weights from which every run starts, float32 on the host."""
        with torch.random.fork_rng(
            devices=[]
        ):  # the weights do not depend on the case's generator and do not change it
            torch.manual_seed(0)
            return self.build(0.0).state_dict()


@dataclass
class Trajectory:
    """Record of a run: numbers per step, and the first gradients as float64 copies on the host."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    #: Gradients of the first step, unscaled and before clipping: here all runs still have the same weights.
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class Trainer:
    """Model with its optimizer and the number of steps taken."""

    def __init__(self, task: TrainingTask, run_device: RunDevice, scheme: Scheme, dropout: float = 0.0) -> None:
        self.task, self.run_device, self.scheme = task, run_device, scheme
        self.model = self.placed_model(dropout)
        self.optimizer = self.new_optimizer()
        self.taken = 0

    def placed_model(self, dropout: float) -> nn.Module:
        """Return the model with its initial weights, on the device and in training mode."""
        model = self.task.build(dropout)
        model.load_state_dict(self.task.initial())
        return model.to(device=self.run_device.device, dtype=self.scheme.storage).train()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the model's parameters."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.task.rate, betas=(0.9, 0.95), eps=1e-6)

    def run(self, steps: int) -> Trajectory:
        """Take ``steps`` more steps and return their record; seconds are wall time with the device synchronized."""
        trajectory = Trajectory()
        for _ in range(steps):
            self.run_device.synchronize()
            started = time.perf_counter()
            loss, norm = self._step(trajectory)
            self.run_device.synchronize()
            trajectory.seconds.append(time.perf_counter() - started)
            trajectory.losses.append(loss)
            trajectory.gradient_norms.append(norm)
        return trajectory

    def _step(self, trajectory: Trajectory) -> tuple[float, float]:
        inputs, targets = self.placed(self.batch())
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(inputs, targets)
        self._unscale()
        if self.taken == 0:
            trajectory.gradients = gradients_of(self.model)
        norm = self.clip()
        self.update()
        return loss.item(), norm.item()

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Add the gradients of a batch to the parameters, and return its loss."""
        loss = self.loss(inputs, targets)
        (loss * self.scheme.loss_scale).backward()
        return loss.detach()

    def clip(self) -> torch.Tensor:
        """Limit the norm of all gradients, and return the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)

    def batch(self) -> Batch:
        """Return the batch of the next step."""
        return self.task.batches[self.taken]

    def placed(self, batch: Batch) -> Batch:
        """Return a batch on the device; numbers get the dtype of the weights."""
        inputs, targets = (part.to(self.run_device.device) for part in batch)
        return (inputs.to(self.scheme.storage) if inputs.is_floating_point() else inputs), targets

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy in nats.

        The logits are widened first: whether autocast computes the loss in float32 differs between device types.
        """
        with self.autocast():
            logits = self.model(inputs)
        return F.cross_entropy(widened(logits).flatten(0, -2), targets.flatten())

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the forward pass computes."""
        if self.scheme.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.run_device.device.type, dtype=self.scheme.autocast)

    def _unscale(self) -> None:
        if self.scheme.loss_scale != 1.0:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.scheme.loss_scale)

    def update(self) -> None:
        """Apply the gradients with a learning rate that rises over the first steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.rate * min(1.0, (self.taken + 1) / WARM_UP_STEPS)
        self.optimizer.step()
        self.taken += 1

    def held_out_loss(self, batch: Batch) -> float:
        """Return the loss on a batch that was not trained on, in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            loss = self.loss(*self.placed(batch)).item()
        self.model.train()
        return loss

    def state(self) -> dict[str, Any]:
        """Return everything that a restarted process needs to continue: weights, optimizer, steps and generator."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "taken": self.taken,
            "rng": self.run_device.rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state`` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.taken = state["taken"]
        # Generators accept only states on the host; the checkpoint may be mapped to the device.
        self.run_device.set_rng_state(state["rng"].cpu())


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 16-bit tensor as float32, and a wider one unchanged."""
    return tensor.float() if tensor.element_size() < 4 else tensor


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return float64 copies of all gradients on the host, by parameter name."""
    found = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return {name: exact(gradient) for name, gradient in found if gradient is not None}


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return float64 copies of all weights on the host, by parameter name."""
    return {name: exact(parameter) for name, parameter in model.named_parameters()}


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float64 copy on the host."""
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return dense.cpu().to(torch.float64, copy=True)

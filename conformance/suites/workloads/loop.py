"""The training loop: the same one on the accelerator, on the host, and on the host in float64."""

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

CLIP = 1.0
WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Place:
    """Where a run happens: the accelerator under test, or the host (no accelerator)."""

    device: torch.device
    accelerator: Any = None

    def synchronize(self) -> None:
        if self.accelerator is not None:
            self.accelerator.synchronize()

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state() if self.accelerator is None else self.accelerator.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        if self.accelerator is None:
            torch.set_rng_state(state)
        else:
            self.accelerator.set_rng_state(state)


HOST = Place(torch.device("cpu"))


@dataclass(frozen=True)
class Scheme:
    """How a dtype trains.

    16-bit dtypes keep float32 weights and compute under autocast. float16 multiplies the loss by a fixed power of
    two, so that small gradients do not vanish: a schedule that reacts to overflow would let two devices part ways.
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
class Task:
    """What is trained. ``build`` makes a model with the given dropout; ``rate`` is AdamW's learning rate."""

    build: Callable[[float], nn.Module]
    batches: Sequence[Batch]
    rate: float
    items_per_step: int

    def initial(self) -> dict[str, torch.Tensor]:
        """The weights every run starts from, float32 on the host."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(0.0).state_dict()


@dataclass
class Trajectory:
    """What a run left: numbers per step, and host copies in float64 of gradients and weights."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    #: Of the first step, unscaled and before clipping: here all runs still have the same weights.
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class Trainer:
    """A model, its optimizer, and how many steps they have taken."""

    def __init__(self, task: Task, place: Place, scheme: Scheme, dropout: float = 0.0) -> None:
        self.task, self.place, self.scheme = task, place, scheme
        self.model = task.build(dropout)
        self.model.load_state_dict(task.initial())
        self.model.to(device=place.device, dtype=scheme.storage).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=task.rate, betas=(0.9, 0.95), eps=1e-6)
        self.taken = 0

    def run(self, steps: int) -> Trajectory:
        """Take ``steps`` more steps."""
        trajectory = Trajectory()
        for _ in range(steps):
            self.place.synchronize()
            started = time.perf_counter()
            loss, norm = self._step(trajectory)
            self.place.synchronize()
            trajectory.seconds.append(time.perf_counter() - started)
            trajectory.losses.append(loss)
            trajectory.gradient_norms.append(norm)
        return trajectory

    def _step(self, trajectory: Trajectory) -> tuple[float, float]:
        inputs, targets = self._placed(self.task.batches[self.taken])
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(inputs, targets)
        (loss * self.scheme.loss_scale).backward()
        self._unscale()
        if self.taken == 0:
            trajectory.gradients = gradients_of(self.model)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.update()
        return loss.item(), norm.item()

    def _placed(self, batch: Batch) -> Batch:
        inputs, targets = (part.to(self.place.device) for part in batch)
        return (inputs.to(self.scheme.storage) if inputs.is_floating_point() else inputs), targets

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy in nats; the logits are widened first, as autocast's lists differ between devices."""
        with self._autocast():
            logits = self.model(inputs)
        return F.cross_entropy(widened(logits).flatten(0, -2), targets.flatten())

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.scheme.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.place.device.type, dtype=self.scheme.autocast)

    def _unscale(self) -> None:
        if self.scheme.loss_scale != 1.0:
            for parameter in self.model.parameters():
                parameter.grad.div_(self.scheme.loss_scale)

    def update(self) -> None:
        """Apply the gradients; the learning rate rises over the first steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.rate * min(1.0, (self.taken + 1) / WARM_UP_STEPS)
        self.optimizer.step()
        self.taken += 1

    def held_out_loss(self, batch: Batch) -> float:
        """The loss on data that was not trained on, in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            loss = self.loss(*self._placed(batch)).item()
        self.model.train()
        return loss

    def state(self) -> dict[str, Any]:
        """Everything a later process needs to go on as if nothing had happened."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "taken": self.taken,
            "rng": self.place.rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.taken = state["taken"]
        # Generators take their state from the host, wherever the checkpoint was mapped to.
        self.place.set_rng_state(state["rng"].cpu())


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit tensors as float32; wider ones as they are."""
    return tensor.float() if tensor.element_size() < 4 else tensor


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: exact(parameter.grad) for name, parameter in model.named_parameters()}


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: exact(parameter) for name, parameter in model.named_parameters()}


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """A float64 copy on the host."""
    return tensor.detach().cpu().to(torch.float64, copy=True)

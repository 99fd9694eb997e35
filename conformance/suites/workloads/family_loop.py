"""Training of the families: the loop of loop.py with inputs by name, losses by kind of data, and micro-batches."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from .families import Family, build, families
from .inputs import IGNORED, Inputs, batches_of
from .loop import HOST, ORACLE, SCHEMES, RunDevice, Scheme, Trainer, TrainingTask, Trajectory, weights_of

#: Steps that are compared with the float64 oracle; more steps only move every run away from it.
COMPARED_STEPS = 4
#: Steps whose figures are reported, which the compared ones have warmed up; steps before and after a restart, and in
#: each run of a rerun.
TIMED_STEPS, RESTART_STEPS = 4, 2


@functools.cache
def task_of(name: str) -> TrainingTask:
    """Return the training task of a family."""
    family = families()[name]
    batches = batches_of(family.data, COMPARED_STEPS)
    return TrainingTask(lambda dropout: build(family, dropout=dropout), batches, family.rate, family.kind.items)


class FamilyTrainer(Trainer):
    """Trainer of a family. ``micro`` batches are accumulated for each step. ``traced`` is build's."""

    def __init__(
        self,
        family: Family,
        run_device: RunDevice,
        scheme: Scheme,
        dropout: float = 0.0,
        micro: int = 1,
        *,
        traced: bool = False,
    ) -> None:
        self.family, self.micro, self.traced = family, micro, traced
        super().__init__(task_of(family.name), run_device, scheme, dropout)

    def placed_model(self, dropout: float) -> nn.Module:
        """Return the model with its initial weights, on the device and in training mode."""
        storage = self.scheme.storage
        return model_on(self.family, self.run_device, storage, dropout=dropout, traced=self.traced).train()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return the family's optimizer of the trainable parameters."""
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if self.family.optimizer == "adamw":
            return torch.optim.AdamW(trainable, lr=self.family.rate, betas=(0.9, 0.95), eps=1e-6)
        # Sparse gradients have no momentum in torch.optim.SGD.
        return torch.optim.SGD(trainable, lr=self.family.rate, momentum=0.0 if self.family.sparse else 0.9)

    def batch(self) -> Any:
        """Return the batch of the next step; after the compared steps the batches repeat."""
        return self.task.batches[self.taken % len(self.task.batches)]

    def backward(self, inputs: Inputs, targets: torch.Tensor) -> torch.Tensor:
        """Add the gradients of each micro-batch, weighted by its share of the counted targets; return the loss."""
        total, counted = torch.zeros((), device=self.run_device.device), (targets != IGNORED).sum()
        for part, wanted in micro_batches(inputs, targets, self.micro):
            share = (wanted != IGNORED).sum() / counted
            loss = self.loss(part, wanted) * share
            (loss * self.scheme.loss_scale).backward()
            total = total + loss.detach()
        return total

    def clip(self) -> torch.Tensor:
        """Limit the norm of all gradients; sparse gradients have no such operator, so only their norm is returned."""
        if not self.family.sparse:
            return super().clip()
        squares = [
            parameter.grad.detach().to_dense().double().square().sum() if parameter.grad.is_sparse
            else parameter.grad.detach().double().square().sum()
            for parameter in self.model.parameters()
            if parameter.grad is not None
        ]  # fmt: skip
        return torch.stack([square.cpu() for square in squares]).sum().sqrt()

    def autocast_is_off(self) -> bool:
        """Tell whether the device computes without autocast now."""
        return not torch.is_autocast_enabled(self.run_device.device.type)

    def placed(self, batch: tuple[Inputs, torch.Tensor]) -> tuple[Inputs, torch.Tensor]:
        """Return a batch on the device; numbers get the dtype of the weights."""
        return placed(batch, self.run_device, self.scheme.storage)

    def loss(self, inputs: Inputs, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of the kind of data."""
        with self.autocast():
            output = self.model(**inputs)
        return self.family.kind.loss(output, targets)


def model_on(
    family: Family, run_device: RunDevice, dtype: torch.dtype, *, dropout: float = 0.0, **changes: Any
) -> nn.Module:
    """Return a family's model on a device, in evaluation mode. Every model under test is made here."""
    grouped = bool(family.routed) and dtype is not torch.float64 and groups_experts(run_device.device.type)
    model = build(family, dropout=dropout, grouped=grouped, **changes)
    return model.to(device=run_device.device, dtype=dtype).eval()


@functools.cache
def groups_experts(device: str) -> bool:
    """Tell whether transformers' grouped experts run on a kind of device; they count tokens in its own integers."""
    if device == "cpu":
        return True
    try:
        # Read the counts: a device that queues its work refuses only then, and would refuse the next case instead.
        torch.histc(torch.zeros(2, dtype=torch.int32, device=device), bins=2, min=0, max=1).cpu()
    except Exception:  # each device refuses in its own way
        return False
    return True


def placed(batch: tuple[Inputs, torch.Tensor], run_device: RunDevice, dtype: torch.dtype) -> Any:
    """Return inputs by name and targets on a device; numbers get ``dtype``, codes stay integers."""
    inputs, targets = batch

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(run_device.device, dtype if tensor.is_floating_point() else None)

    return {name: move(part) for name, part in inputs.items()}, move(targets)


def micro_batches(inputs: Inputs, targets: torch.Tensor, number: int) -> list[tuple[Inputs, torch.Tensor]]:
    """Return the rows of a batch in ``number`` parts."""
    if number == 1:
        return [(inputs, targets)]
    parts = {name: tensor.chunk(number) for name, tensor in inputs.items()}
    return [
        ({name: chunks[index] for name, chunks in parts.items()}, wanted)
        for index, wanted in enumerate(targets.chunk(number))
    ]


class FamilyReference:
    """Float64 run of a family on the host; one per process and family, which takes a few megabytes."""

    def __init__(self, family: Family) -> None:
        trainer = FamilyTrainer(family, HOST, ORACLE)
        self.initial = weights_of(trainer.model)
        self.run: Trajectory = trainer.run(COMPARED_STEPS)
        self.weights = weights_of(trainer.model)


@functools.cache
def reference_of(name: str) -> FamilyReference:
    """Return the oracle of a family."""
    return FamilyReference(families()[name])


@functools.cache
def host_run_of(name: str, dtype: str) -> tuple[Trajectory, dict[str, torch.Tensor]]:
    """Return the host's run in the dtype of a case, and its weights afterwards."""
    trainer = FamilyTrainer(families()[name], HOST, SCHEMES[dtype])
    return trainer.run(COMPARED_STEPS), weights_of(trainer.model)

"""Exact training under DeepSpeed's AutoTP, which cuts the linear layers of a model over the ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.suites.workloads.parallel.deepspeed_engine import config_of, start

from .decoder import Decoder
from .families import MOMENTUM, ROWS, Family, Linear, hinge, tokens
from .reference import Comparison, Placed
from .training import placed

LAYERS = 2


class PlainModel(nn.Module):
    """Part of the decoder below its head. AutoTP finds the layers of a module whose class ends in ``Model``."""


class PlainDecoder(Decoder):
    """Exact decoder with PyTorch's own linear layers, the only class that AutoTP cuts.

    These multiply by the very weights, so the optimizer keeps the weights whole.
    """

    def __init__(self) -> None:
        super().__init__(LAYERS)
        below = PlainModel()
        for name, child in self.model.named_children():
            setattr(below, name, child)
        self.model = below
        for module in list(self.modules()):
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    plain = nn.Linear(child.in_features, child.out_features, bias=False)
                    plain.weight = child.weight
                    setattr(module, name, plain)


class WholeSteps(torch.optim.SGD):
    """SGD whose weights are -1, 0 and 1 after every step. Each weight depends on its own gradients only."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.round().clamp(-1.0, 1.0))


class PlainFamily(Family):
    """Family of the plain decoder."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer that keeps weights whole."""
        return WholeSteps(model.parameters(), lr=self.rate, momentum=MOMENTUM, foreach=False)


@functools.cache
def family_of() -> Family:
    """Return the family that is trained."""
    return PlainFamily("decoder-plain", PlainDecoder, tokens, hinge, rate=2.0**-4)


def check_auto_tp(check: Any, accelerator: Any, device: torch.device) -> None:
    """Check a training whose layers AutoTP has cut: each rank's parts are those of one process."""
    rank, ranks, family = dist.get_rank(), dist.get_world_size(), family_of()
    config = config_of(0, "float32", 1, tensor_parallel={"autotp_size": ranks}, zero_force_ds_cpu_optimizer=False)
    config["train_micro_batch_size_per_gpu"] = ROWS
    shapes = {name: value.shape for name, value in family.build().named_parameters()}
    engine = start(accelerator, device, family.initial().to(device), config, ranks, family.optimizer)
    cut = [name for name, value in engine.module.named_parameters() if value.shape != shapes[name]]
    check.that(len(cut) >= LAYERS, f"AutoTP has cut only {cut}")
    compared = Comparison(family, rank=rank, kind="autotp: ")
    for step in range(family.steps):
        inputs, targets = placed(family.batches()[step], device, torch.float32)
        loss = family.loss(engine(inputs), targets)
        engine.backward(loss)
        named = dict(engine.module.named_parameters())
        found = {name: value.grad for name, value in named.items() if value.grad is not None}
        compared.gradients(step, {name: placed_part(grad, shapes[name], rank) for name, grad in found.items()})
        engine.step()
        compared.weights(step, {name: placed_part(value.detach(), shapes[name], rank) for name, value in named.items()})
        compared.loss(step, float(loss.detach()))
    compared.tell(check)


def placed_part(part: torch.Tensor, shape: torch.Size, rank: int) -> Placed:
    """Return a rank's part of a tensor of a shape with its places: the parts lie in the order of the ranks."""
    places = torch.arange(shape.numel()).view(shape)
    for dim, (own, full) in enumerate(zip(part.shape, shape, strict=True)):
        if own != full:
            places = places.narrow(dim, rank * own, own)
    return Placed(part, places)

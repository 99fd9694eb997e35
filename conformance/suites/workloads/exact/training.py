"""Trainings of one process: ways to do the same arithmetic, each of which has to give the same bits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .families import Family
from .reference import Comparison


def named_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients by the parameters' own names."""
    named = {name: value.grad for name, value in model.named_parameters()}
    return own_names({name: gradient for name, gradient in named.items() if gradient is not None})


def named_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by the parameters' own names."""
    return own_names(dict(model.named_parameters()))


def own_names(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by the parameters' own names, without those of wrappers."""
    return {_own(name): value for name, value in named.items()}


def _own(name: str) -> str:
    for wrapper in ("_checkpoint_wrapped_module.", "_orig_mod.", "module."):
        name = name.replace(wrapper, "")
    return name


def placed(batch: Any, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return a batch on the device; numbers get the dtype."""
    return tuple(part.to(device, dtype if part.is_floating_point() else None) for part in batch)


def train(
    compared: Comparison,
    family: Family,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    backward: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor],
    steps: range,
) -> None:
    """Train for the steps and compare each loss, gradient and weight with the exact one."""
    one = next(model.parameters())
    for step in steps:
        inputs, targets = placed(family.batches()[step], one.device, one.dtype)
        optimizer.zero_grad()
        loss = backward(family, inputs, targets)
        compared.loss(step, float(loss))
        compared.gradients(step, named_gradients(model))
        optimizer.step()
        compared.weights(step, named_weights(model))


def plainly(model: Callable[..., torch.Tensor], parts: int = 1) -> Callable[..., torch.Tensor]:
    """Return a function that does the backward pass of a batch in ``parts`` micro-batches and returns the loss."""

    def backward(family: Family, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=inputs.device)
        for some, wanted in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            loss = family.loss(model(some), wanted) / parts
            loss.backward()
            total = total + loss.detach()
        return total

    return backward


def check_way(check: Any, way: str, family: Family, accelerator: Any, device: torch.device, dtype: str) -> None:
    """Check that one way to train a family has the exact bits."""
    compared = Comparison(family, dtype)
    model = family.initial().to(device, getattr(torch, dtype))
    with WAYS[way](model, accelerator) as backward:
        train(compared, family, model, family.optimizer(model), backward, range(family.steps))
    compared.tell(check)


@contextlib.contextmanager
def _eager(model: nn.Module, accelerator: Any) -> Any:
    yield plainly(model)


@contextlib.contextmanager
def _accumulated(model: nn.Module, accelerator: Any) -> Any:
    yield plainly(model, parts=4)


@contextlib.contextmanager
def _checkpointed(model: nn.Module, accelerator: Any) -> Any:
    yield plainly(lambda inputs: checkpoint(model, inputs, use_reentrant=False))


@contextlib.contextmanager
def _offloaded(model: nn.Module, accelerator: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        yield plainly(model)


@contextlib.contextmanager
def _compiled(model: nn.Module, accelerator: Any) -> Any:
    import torch._dynamo

    torch._dynamo.reset()  # graphs of an earlier case would be reused
    try:
        yield plainly(torch.compile(model, backend=accelerator.get_compile_backend()))
    finally:
        torch._dynamo.reset()


@contextlib.contextmanager
def _captured(model: nn.Module, accelerator: Any) -> Any:
    """Capture forward and backward pass of the first batch, and replay them with the numbers of each batch."""
    graph, held = accelerator.create_graph(), {}

    def backward(family: Family, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not held:
            held.update(_capture(accelerator, graph, family, model, inputs, targets))
        held["inputs"].copy_(inputs)
        held["targets"].copy_(targets)
        accelerator.replay_graph(graph)
        for parameter, gradient in zip(model.parameters(), held["gradients"], strict=True):
            parameter.grad = gradient
        loss: torch.Tensor = held["loss"]
        return loss

    yield backward


def _capture(
    accelerator: Any, graph: Any, family: Family, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, Any]:
    """Capture a backward pass and return the tensors at whose addresses it replays."""
    # Libraries make their handles and workspaces in the first call, which a graph cannot capture.
    side = accelerator.Stream()
    accelerator.synchronize()
    with accelerator.stream(side):
        family.loss(model(inputs), targets).backward()
    accelerator.synchronize()
    model.zero_grad()
    inputs, targets = inputs.clone(), targets.clone()
    with accelerator.capture_to_graph(graph):
        loss = family.loss(model(inputs), targets)
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return {"inputs": inputs, "targets": targets, "loss": loss.detach(), "gradients": gradients}


#: Contexts that yield the backward pass of each way.
WAYS = {
    "eager": _eager,
    "accumulated": _accumulated,
    "checkpointed": _checkpointed,
    "offloaded": _offloaded,
    "compiled": _compiled,
    "captured": _captured,
}


def check_resumed(check: Any, family: Family, device: torch.device, folder: Path) -> None:
    """Check that a training saved after its first step and loaded by another model has the exact bits."""
    compared = Comparison(family)
    model = family.initial().to(device)
    optimizer = family.optimizer(model)
    train(compared, family, model, optimizer, plainly(model), range(1))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"{family.name}.pt")

    saved = torch.load(folder / f"{family.name}.pt", map_location=device, weights_only=True)
    other = family.build().to(device)
    again = family.optimizer(other)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(compared, family, other, again, plainly(other), range(1, family.steps))
    compared.tell(check)

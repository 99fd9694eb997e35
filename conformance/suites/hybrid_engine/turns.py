"""Training steps, sampling, and snapshots of the state that generation must not change."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from conformance.judging.finding import require
from conformance.kernels.linear import LoRALinear
from conformance.suites.inference.language_model import exact_model, some_tokens
from conformance.suites.shared_bodies import warm_up

BATCH, TOKENS = 2, 6
_RANK, _ALPHA = 4, 8.0


def train(model, optimizer, seed):
    """Take one step on the cross-entropy of the next token, in place."""
    tokens = some_tokens(4, 8, seed=seed).to(model.head.weight.device)
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()


def exact_logits(model, tokens, state=None):
    """Return the float64 logits of the model's current weights, or of ``state``, on the host."""
    return exact_model(state or model.state_dict())(tokens).detach()


def sampled(decoder, prompt, count, generator):
    """Return ``count`` tokens for each sequence, (batch, count), drawn one by one after a prompt of several tokens."""
    found = [prompt]
    for _ in range(count):
        probabilities = functional.softmax(decoder(found[-1])[:, -1].float(), dim=-1)
        found.append(torch.multinomial(probabilities, 1, generator=generator))
    return torch.cat(found[1:], dim=1)


def bits(model):
    """Return copies on the host of everything in the model's state, by name."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def training_state(model, optimizer, accelerator):
    """Return copies by name of weights, gradients, the optimizer's state, generator states and flags."""
    gradients = {name: parameter.grad.cpu().clone() for name, parameter in model.named_parameters()}
    snapshot = bits(model) | {f"the gradient of {name}": gradient for name, gradient in gradients.items()}
    for index, state in optimizer.state_dict()["state"].items():
        snapshot |= {
            f"state '{name}' of parameter {index}": torch.as_tensor(value).cpu().clone()
            for name, value in state.items()
        }
    snapshot["the generator state of the host"] = torch.get_rng_state().clone()
    snapshot["the generator state of the device"] = accelerator.get_rng_state().clone()
    flags = [model.training, torch.is_grad_enabled(), *(value.requires_grad for value in model.parameters())]
    return snapshot | {"flags": torch.tensor(flags)}


def captured(accelerator, work):
    """Return a graph of the work, which runs once before on a side stream, as capturing needs a warm-up."""
    warm_up(accelerator, work)
    graph = require(accelerator.create_graph(), "create_graph()")
    with accelerator.capture_to_graph(graph):
        work()
    return graph


def with_small_matrices(model):
    """Freeze the model, add trainable LoRA matrices with nonzero values to its projections, and return it."""
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("qkv", "out", "down"):
            tuned = LoRALinear(getattr(layer, name), _RANK, _ALPHA)
            nn.init.normal_(tuned.up, std=0.1)
            setattr(layer, name, tuned)
    return model


def tuned_layers(model):
    return [layer for layer in model.modules() if isinstance(layer, LoRALinear)]


def as_one_matrix(model):
    """Return a float64 state with each base weight and its LoRA matrices merged, computed without the layers."""
    exact = {name: value.detach().cpu().double() for name, value in model.state_dict().items()}
    for path, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            base, up, down = (exact.pop(f"{path}.{name}") for name in ("base.weight", "up", "down"))
            exact[f"{path}.weight"] = base + _ALPHA / _RANK * up @ down
    return exact

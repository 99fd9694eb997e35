"""Steps of training, sampling, and what of all this may not change."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from conformance.finding import require
from conformance.kernels.linear import LoRALinear
from conformance.suites.accelerator.capturing import warm_up
from conformance.suites.inference.language_model import exact_model, some_tokens

BATCH, TOKENS = 2, 6
_RANK, _ALPHA = 4, 8.0


def train(model, optimizer, seed):
    """One step of the usual loss, in place."""
    tokens = some_tokens(4, 8, seed=seed).to(model.head.weight.device)
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()


def wanted(model, tokens, state=None):
    """The logits of the weights as they are now, or of that state, in float64."""
    return exact_model(state or model.state_dict())(tokens).detach()


def sampled(decoder, prompt, count, generator):
    """Tokens (batch, count) behind a prompt of several, drawn one after the other."""
    found = [prompt]
    for _ in range(count):
        shares = functional.softmax(decoder(found[-1])[:, -1].float(), dim=-1)
        found.append(torch.multinomial(shares, 1, generator=generator))
    return torch.cat(found[1:], dim=1)


def bits(model):
    """Everything that a model's state holds."""
    return {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}


def everything(model, optimizer, accelerator):
    """Bits of all that training goes on with: weights, gradients, the optimizer's states, random numbers, flags."""
    seen = bits(model) | {f"the gradient of {name}": one.grad.cpu().clone() for name, one in model.named_parameters()}
    for place, state in optimizer.state_dict()["state"].items():
        seen |= {f"state {name} of {place}": torch.as_tensor(one).cpu().clone() for name, one in state.items()}
    seen["random numbers of the host"] = torch.get_rng_state().clone()
    seen["random numbers of the device"] = accelerator.get_rng_state().clone()
    flags = [model.training, torch.is_grad_enabled(), *(one.requires_grad for one in model.parameters())]
    return seen | {"flags": torch.tensor(flags)}


def captured(accelerator, work):
    """A graph of the work. It runs once before, on a side stream, as capturing needs it."""
    warm_up(accelerator, work)
    graph = require(accelerator.create_graph(), "create_graph()")
    with accelerator.capture_to_graph(graph):
        work()
    return graph


def with_small_matrices(model):
    """Its projections frozen, with small matrices beside them that are not zero; everything else is frozen too."""
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("qkv", "out", "down"):
            tuned = LoRALinear(getattr(layer, name), _RANK, _ALPHA)
            nn.init.normal_(tuned.up, std=0.1)
            setattr(layer, name, tuned)
    return model


def tuned_layers(model):
    return [one for one in model.modules() if isinstance(one, LoRALinear)]


def as_one_matrix(model):
    """The state of a model whose weights are what three matrices make together, in float64 and not by the layers."""
    exact = {name: one.detach().cpu().double() for name, one in model.state_dict().items()}
    for path, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            base, up, down = (exact.pop(f"{path}.{name}") for name in ("base.weight", "up", "down"))
            exact[f"{path}.weight"] = base + _ALPHA / _RANK * up @ down
    return exact

"""Adapted models: low-rank adapters, narrow weights, embedded inputs, and several requests in one paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import libraries
from .comparing import bounds_of, relative_error, within
from .decoding import decoder_on, prompts
from .families import Family
from .family_checks import LIMITS, naming_layer, reference_batch
from .family_loop import model_on, placed
from .loop import HOST, SCHEMES, RunDevice, exact, weights_of

#: Steps with an adapter.
_STEPS = 4


def check_adapter(check: Any, family: Family, run_device: RunDevice) -> None:
    """Train a low-rank adapter as the oracle does; check the merged model, and that other weights stand still."""
    kinds = [(run_device, torch.float32), (HOST, torch.float32), (HOST, torch.float64)]
    with torch.random.fork_rng(devices=[]):
        models = [_with_adapter(family, place, kind) for place, kind in kinds]
    initial = weights_of(models[0])
    for model, (place, kind) in zip(models, kinds, strict=True):
        _train(model, family, place, kind)
    device, host, oracle = (weights_of(model) for model in models)
    bounds = bounds_of("float32")

    for name, wanted in oracle.items():
        way = float((wanted - initial[name]).norm())
        if "lora_" not in name:
            check.equal(device[name], initial[name], f"the frozen weight {name}")
            continue
        check.that(way > 0, f"{name} has not moved")
        error, host_error = (float((side[name] - wanted).norm()) / way for side in (device, host))
        within(check, f"the update of {name}", error, bounds.parameters, host_error, bounds)
    _check_merged(check, models[0], models[2], family, run_device)


def _with_adapter(family: Family, run_device: RunDevice, kind: torch.dtype) -> Any:
    """Return a model with adapters, whose second factors are not zero."""
    peft = libraries.library("peft")
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model_on(family, HOST, torch.float32), settings, autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.to(run_device.device, kind).train()


def _train(model: Any, family: Family, run_device: RunDevice, kind: torch.dtype) -> None:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, eps=1e-6)
    inputs, targets = placed(reference_batch(family), run_device, kind)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        family.kind.loss(model(**inputs), targets).backward()
        optimizer.step()


@torch.no_grad()
def _check_merged(check: Any, model: Any, oracle: Any, family: Family, run_device: RunDevice) -> None:
    inputs, _ = placed(reference_batch(family), run_device, torch.float32)
    apart = exact(model.eval()(**inputs).logits)
    with model.disable_adapter():
        without = exact(model(**inputs).logits)
    merged = exact(model.merge_and_unload()(**inputs).logits)

    error = relative_error(merged, apart)
    bound = LIMITS["merged"]
    check.that(error <= bound, f"the merged model differs from the adapter by {error:.3g}, allowed {bound:.3g}")
    check.that(relative_error(without, apart) > 100 * bound, "the adapter changes nothing")
    check.metric("merged_error", error)


def check_input_gradient(check: Any, family: Family, run_device: RunDevice) -> None:
    """Compare the gradient of embedded inputs with the oracle's."""
    with naming_layer(family, run_device, SCHEMES["float32"]):
        kinds = [(run_device, torch.float32), (HOST, torch.float32), (HOST, torch.float64)]
        device, host, oracle = (_input_gradient(family, place, kind) for place, kind in kinds)
        bounds = bounds_of("float32")
        error, host_error = relative_error(device, oracle), relative_error(host, oracle)
        within(check, "the gradient of the embedded inputs", error, bounds.gradients, host_error, bounds)
    check.metric("gradient_error", error)


def _input_gradient(family: Family, run_device: RunDevice, kind: torch.dtype) -> torch.Tensor:
    model = model_on(family, run_device, kind).train()
    inputs, targets = placed(reference_batch(family), run_device, kind)
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    embedded = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    family.kind.loss(model(inputs_embeds=embedded, **given), targets).backward()
    return exact(embedded.grad)


class NarrowLinear(nn.Module):
    """Linear layer whose weights are stored in a few bits, with one scale for each output."""

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        largest = weight.abs().amax(1, keepdim=True).clamp(min=1e-12)
        self.kind, self.bias = kind, linear.bias
        self.scale = nn.Buffer(largest / {"int8": 127.0, "int4": 7.0, "fp8": 448.0}[kind])
        scaled = weight / self.scale
        if kind == "fp8":
            self.stored = nn.Buffer(scaled.to(torch.float8_e4m3fn))
        elif kind == "int4":
            codes = scaled.round().clamp(-7, 7).to(torch.int64) + 8
            self.stored = nn.Buffer((codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8))
        else:
            self.stored = nn.Buffer(scaled.round().to(torch.int8))

    def weight(self) -> torch.Tensor:
        """Return the float32 weights that the stored bits stand for."""
        if self.kind == "int4":
            codes = torch.stack((self.stored & 15, self.stored >> 4), dim=-1).flatten(1)
            return (codes.float() - 8) * self.scale
        return self.stored.float() * self.scale

    def step(self) -> torch.Tensor:
        """Return the largest distance of each weight to its neighbours that can be stored."""
        if self.kind == "fp8":
            # Three bits of mantissa; below 2^-6 the numbers are evenly spaced.
            return (self.weight().abs() / 8).maximum(2.0**-9 * self.scale)
        return self.scale.expand_as(self.weight())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product with the stored weights."""
        return F.linear(x, self.weight().to(x.dtype), self.bias)


def _narrowed(model: nn.Module, kind: str) -> list[tuple[str, NarrowLinear]]:
    """Replace the linear layers of a model; return name and new layer of each."""
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    replaced = []
    for name, layer in found:
        narrow = NarrowLinear(layer, kind)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, narrow)
        replaced.append((name, narrow))
    return replaced


@torch.no_grad()
def check_narrow_weights(check: Any, family: Family, run_device: RunDevice, kind: str) -> None:
    """Check that each stored weight is within half a step, and that the device computes what the host computes."""
    model, oracle = decoder_on(family, run_device, torch.float32), decoder_on(family, HOST, torch.float64)
    wide = {
        name: layer.weight.double().clone() for name, layer in oracle.named_modules() if isinstance(layer, nn.Linear)
    }
    for name, narrow in _narrowed(model, kind):
        error, half = (exact(narrow.weight()) - wide[name]).abs(), exact(narrow.step()) / 2
        over = float((error / half).max())
        check.that(over <= 1 + 1e-5, f"a weight of {name} is {over:.3g} half steps away from its {kind} value")
        oracle.get_submodule(name).weight.copy_(exact(_on_host(narrow, kind, wide[name])))
    tokens = prompts(family)["input_ids"]
    found = exact(model(tokens.to(run_device.device)).logits)
    wanted = exact(oracle(tokens).logits)
    bounds = bounds_of("float32")
    error = relative_error(found, wanted)
    check.that(
        error <= bounds.logits, f"the logits with {kind} weights are off by {error:.3g}, allowed {bounds.logits}"
    )
    check.metric("logit_error", error)


def _on_host(narrow: NarrowLinear, kind: str, weight: torch.Tensor) -> torch.Tensor:
    """Return the weights that the host stores; a tie may be rounded to either side, so the device's code decides it."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data.copy_(weight)
    host, device = NarrowLinear(linear, kind).weight(), narrow.weight().cpu()
    near_tie = (host - device).abs() <= 1.001 * narrow.step().cpu()
    return torch.where(near_tie, device, host)

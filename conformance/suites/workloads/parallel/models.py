"""Llama and mixtral with small random configurations, their data, and their training by one process in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.numerics.budgets import load_table
from conformance.suites.workloads.data import text_batches
from conformance.suites.workloads.libraries import member

#: World sizes up to 4 divide the batch, and micro-batches of two sequences divide the part of a rank.
BATCH, CONTEXT = 12, 32
#: Steps of a training. A checkpoint is saved after the first half of them.
STEPS = 4
RATE, MOMENTUM = 0.05, 0.9
#: Steps of a training by an engine of PyTorch: the second one has momentum, and a resumed one begins with the momentum
#: that was saved. The rate is larger, so that every weight moves as far as in four steps.
QUICK_STEPS, QUICK_RATE = 2, 0.2
#: Layers of a model that no pipeline cuts into more parts.
QUICK_LAYERS = 2
#: Sizes that both models share. All heads have keys of their own, so that four ranks of tensor parallelism get one.
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
#: Settings of each model beyond ``SIZES``.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
_CLASSES = {"llama": "Llama", "mixtral": "Mixtral"}
#: Modules that take seconds to import. They are imported once, before the ranks are forked.
IMPORTS = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
)


def bound(name: str) -> float:
    """Return one number of parallel/bounds.toml."""
    return float(load_table(__file__, "bounds.toml")[name])


def config_of(family: str, **changes: Any) -> Any:
    """Return the configuration of a small model of that family."""
    return member("transformers", f"{_CLASSES[family]}Config")(**{**SIZES, **FAMILIES[family], **changes})


def class_of(family: str) -> Any:
    """Return the class of a causal language model; skip the case if transformers is missing or not the tested one."""
    return member("transformers", f"{_CLASSES[family]}ForCausalLM")


def new_model(family: str, seed: int = 0, **changes: Any) -> nn.Module:
    """Return a model on the host in float32, with the random weights of that seed."""
    kind, config = class_of(family), config_of(family, **changes)
    # Grouped products of experts, the default, refuse float64, which the reference needs.
    config._experts_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config).train()


@functools.cache
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return tokens and next tokens of every step, each of shape (BATCH, CONTEXT), for all ranks together."""
    return text_batches(BATCH, CONTEXT, STEPS, seed=11)


def positions(device: torch.device | str, rows: int = 1) -> torch.Tensor:
    """Return the position of every token. A model that has only a part of a sequence would count from its part."""
    return torch.arange(CONTEXT, device=device).expand(rows, -1)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of every training. SGD keeps the size of an error; Adam scales it up."""
    # Under tensor parallelism norms are plain tensors beside sharded ones, and foreach refuses to mix the two.
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, foreach=False)


def quick_optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a training by an engine of PyTorch."""
    return torch.optim.SGD(model.parameters(), lr=QUICK_RATE, momentum=MOMENTUM, foreach=False)


def adamw_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW, for what needs its states, such as DeepSpeed's universal checkpoints."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4, foreach=False)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of (…, vocabulary) logits, in float32 at least."""
    # The loss itself would be rounded to 8 bits in bfloat16.
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_on(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of one forward pass."""
    return loss_of(model(tokens, position_ids=positions(tokens.device), use_cache=False).logits, targets)


@dataclass(frozen=True)
class Reference:
    """Training by one process in float64: losses of the steps, and weights before and after them."""

    losses: tuple[float, ...]
    initial: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


@functools.cache
def reference(
    family: str,
    change: Callable[[nn.Module], object] | None = None,
    optimizer_for: Callable[[nn.Module], torch.optim.Optimizer] = optimizer_of,
    steps: int = STEPS,
    **sizes: int,
) -> Reference:
    """Return the training of a family on the host, after ``change`` of its model. A process computes it once.

    ``sizes`` change the model's configuration.
    """
    model = new_model(family, **sizes).double()
    if change:
        change(model)
    initial = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer, losses = optimizer_for(model), []
    for tokens, targets in batches()[:steps]:
        optimizer.zero_grad()
        loss = loss_on(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Reference(tuple(losses), initial, {name: value.detach() for name, value in model.named_parameters()})


def quick_reference(family: str, layers: int = QUICK_LAYERS) -> Reference:
    """Return the training of a family with so many layers, which trainings by engines of PyTorch are compared with."""
    return reference(family, None, quick_optimizer_of, QUICK_STEPS, num_hidden_layers=layers)


def check_losses(check: Any, family: str, losses: list[float], kind: str = "", known: Reference | None = None) -> None:
    """Check the loss of every step. ``kind`` selects bounds, such as ``"_bfloat16"``."""
    exact = (known or reference(family)).losses[-len(losses) :]
    allowed = bound(f"loss{kind}")
    errors = [abs(value - right) / abs(right) for value, right in zip(losses, exact, strict=True)]
    for step, error in enumerate(errors, 1):
        check.that(error <= allowed, f"the loss of step {step} is off by {error:.3g}, allowed {allowed:.3g}")
    check.metric("loss_error", max(errors))


def check_weights(
    check: Any,
    family: str,
    found: dict[str, torch.Tensor],
    *,
    every: bool = True,
    kind: str = "",
    known: Reference | None = None,
) -> None:
    """Check weights after all steps against ``known``, by default the family's plain training.

    With ``every``, none of the model's weights may be missing.
    """
    known = known or reference(family)
    check.that(bool(found) and (not every or found.keys() == known.weights.keys()), "weights are missing")
    errors = {name: error_of(value, known.weights[name]) for name, value in found.items()}
    allowed = bound(f"weights{kind}")
    for name, error in errors.items():
        check.that(
            error <= allowed,
            f"{name} is off by {error:.3g} of its largest weight after training, allowed {allowed:.3g}",
        )
        # A comparison with weights that hardly move finds nothing.
        moved = error_of(known.weights[name], known.initial[name])
        check.that(moved >= bound("moved"), f"training moved {name} by {moved:.3g}, needed {bound('moved'):.3g}")
    check.metric("weight_error", max(errors.values()))


def error_of(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference over the largest element of ``exact``; NaN if ``value`` has a NaN."""
    return float((value.detach().cpu().double() - exact).abs().max() / exact.abs().max())

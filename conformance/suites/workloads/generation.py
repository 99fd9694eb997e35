"""Greedy generation, with a cache of keys and values and without."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import tasks
from .data import held_out_text
from .loop import Place, exact
from .models.gpt import GPT

PROMPTS, PROMPT_LENGTH, NEW_TOKENS = 4, 16, 32


@dataclass(frozen=True)
class Generated:
    """Host copies: ``tokens`` (prompts, length), and the logits that chose the new ones, in float64."""

    tokens: torch.Tensor
    logits: torch.Tensor

    @property
    def new(self) -> torch.Tensor:
        return self.tokens[:, PROMPT_LENGTH:]


def learned_model(place: Place, dtype: torch.dtype) -> GPT:
    """The language model that the host trained, in ``dtype`` throughout."""
    model = GPT(tasks.GPT_SHAPE)
    model.load_state_dict(tasks.reference("gpt").learned)
    return model.to(place.device, dtype).eval()


def prompts() -> torch.Tensor:
    return held_out_text(PROMPTS, PROMPT_LENGTH, seed=3)[0]


@torch.no_grad()
def generate(model: GPT, place: Place) -> Generated:
    """Continue the prompts one token at a time, each step seeing only its new token and the cache."""
    tokens = prompts().to(place.device)
    logits, caches = model.step(tokens, None)
    chosen: list[torch.Tensor] = []
    for position in range(NEW_TOKENS):
        chosen.append(logits[:, -1])
        tokens = torch.cat((tokens, chosen[-1].argmax(-1, keepdim=True)), dim=1)
        if position < NEW_TOKENS - 1:
            logits, caches = model.step(tokens[:, -1:], caches)
    return Generated(tokens.cpu(), exact(torch.stack(chosen, dim=1)))


@torch.no_grad()
def full_logits(model: GPT, place: Place, tokens: torch.Tensor) -> torch.Tensor:
    """One forward pass over all ``tokens``: float64 on the host."""
    return exact(model(tokens.to(place.device)))


def choosing(logits: torch.Tensor) -> torch.Tensor:
    """The positions of a full forward pass that choose the new tokens."""
    return logits[:, PROMPT_LENGTH - 1 : PROMPT_LENGTH - 1 + NEW_TOKENS]

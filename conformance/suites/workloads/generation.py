"""Greedy text generation with a cache of keys and values, and full forward passes without one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import tasks
from .data import held_out_text
from .loop import RunDevice, exact
from .models.gpt import GPT

PROMPTS, PROMPT_LENGTH, NEW_TOKENS = 4, 16, 32


@dataclass(frozen=True)
class Generated:
    """Generated text on the host: ``tokens`` (prompts, length), and the float64 logits that chose the new ones."""

    tokens: torch.Tensor
    logits: torch.Tensor

    @property
    def new(self) -> torch.Tensor:
        """Return the tokens after the prompts: (prompts, NEW_TOKENS)."""
        return self.tokens[:, PROMPT_LENGTH:]


def learned_model(run_device: RunDevice, dtype: torch.dtype) -> GPT:
    """Return the language model that the host trained, on this device and with all weights in ``dtype``."""
    model = GPT(tasks.GPT_SHAPE)
    model.load_state_dict(tasks.reference("gpt").learned)
    return model.to(run_device.device, dtype).eval()


def prompts() -> torch.Tensor:
    """Return the prompts: int64 tokens (PROMPTS, PROMPT_LENGTH) of held-out text."""
    return held_out_text(PROMPTS, PROMPT_LENGTH, seed=3)[0]


@torch.no_grad()
def generate(model: GPT, run_device: RunDevice) -> Generated:
    """Continue the prompts by NEW_TOKENS tokens; each step gets only the new token and the cache."""
    tokens = prompts().to(run_device.device)
    logits, caches = model.step(tokens, None)
    chosen: list[torch.Tensor] = []
    for position in range(NEW_TOKENS):
        chosen.append(logits[:, -1])
        tokens = torch.cat((tokens, chosen[-1].argmax(-1, keepdim=True)), dim=1)
        if position < NEW_TOKENS - 1:  # nothing follows the last token
            logits, caches = model.step(tokens[:, -1:], caches)
    return Generated(tokens.cpu(), exact(torch.stack(chosen, dim=1)))


@torch.no_grad()
def full_logits(model: GPT, run_device: RunDevice, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of one forward pass over all ``tokens``, float64 on the host."""
    return exact(model(tokens.to(run_device.device)))


def choosing(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of a full forward pass at the positions that choose the new tokens."""
    return logits[:, PROMPT_LENGTH - 1 : PROMPT_LENGTH - 1 + NEW_TOKENS]

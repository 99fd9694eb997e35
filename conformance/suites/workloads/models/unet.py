"""Denoising UNet of a diffusion model: convolutions, group norm, cross-attention to a caption, and a time embedding."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from conformance.suites.parameters import spread_constants

WIDTH = 16
#: Steps of the noise schedule.
STEPS = 1000


def signal_share() -> torch.Tensor:
    """Return the share of the signal after each noise step, float64: the cosine schedule of Nichol and Dhariwal."""
    steps = torch.arange(STEPS + 1, dtype=torch.float64) / STEPS
    left = torch.cos((steps + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - left[1:] / left[:-1]).clamp(max=0.999)
    return torch.cumprod(1 - betas, dim=0)


class CrossAttention(nn.Module):
    """Attention of pixels to the embedded tokens of a caption."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, caption: torch.Tensor) -> torch.Tensor:
        """Return pixels ``x`` (batch, width, rows, columns) with what they take from ``caption`` (batch, n, width)."""
        pixels = x.flatten(2).transpose(1, 2)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(self.norm(pixels)), self.key(caption), self.value(caption))
        )
        taken = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(taken.transpose(1, 2).flatten(2)).transpose(1, 2).view_as(x)


class Stage(nn.Module):
    """Residual block with group norm, a shift by the time, and cross-attention."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(size, width, 3, padding=1) for size in (inputs, width))
        self.norms = nn.ModuleList((nn.GroupNorm(4, inputs), nn.GroupNorm(4, width)))
        self.skip = nn.Conv2d(inputs, width, 1)
        self.shift = nn.Linear(WIDTH, width)
        self.caption = nn.Linear(WIDTH, width)
        self.attention = CrossAttention(width)

    def forward(self, x: torch.Tensor, time: torch.Tensor, caption: torch.Tensor) -> torch.Tensor:
        """Return features (batch, width, rows, columns)."""
        hidden = self.first(F.silu(self.norms[0](x))) + self.shift(time)[:, :, None, None]
        hidden = self.skip(x) + self.second(F.silu(self.norms[1](hidden)))
        return self.attention(hidden, self.caption(caption))


class UNet(nn.Module):
    """UNet of two resolutions that predicts the noise in an image.

    With ``one_stage`` it has only the last of three stages, the one that joins both resolutions.
    """

    def __init__(self, *, one_stage: bool = False) -> None:
        super().__init__()
        self.checkpointing = False
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.tokens = nn.Embedding(128, WIDTH)
        self.enter = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.down = None if one_stage else Stage(WIDTH, WIDTH)
        self.shrink = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1)
        self.middle = None if one_stage else Stage(2 * WIDTH, 2 * WIDTH)
        self.grow = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1)
        self.up = Stage(2 * WIDTH, WIDTH)
        self.leave = nn.Conv2d(WIDTH, 1, 3, padding=1)
        spread_constants(self)

    def activation_checkpointing_enable(self) -> None:
        """Recompute the activations of each stage in the backward pass."""
        self.checkpointing = True

    def forward(self, noisy: torch.Tensor, step: torch.Tensor, caption: torch.Tensor) -> torch.Tensor:
        """Return the noise in images (batch, 1, 8, 8) at int64 ``step`` (batch), with a caption (batch, n)."""
        time, words = self.time(_waves(step, noisy.dtype)), self.tokens(caption)
        wide = self._stage(self.down, self.enter(noisy), time, words)
        deep = self._stage(self.middle, self.shrink(wide), time, words)
        return self.leave(self._stage(self.up, torch.cat((self.grow(deep), wide), dim=1), time, words))

    def _stage(self, stage: Stage | None, *inputs: torch.Tensor) -> torch.Tensor:
        if stage is None:
            return inputs[0]
        return checkpoint(stage, *inputs, use_reentrant=False) if self.checkpointing else stage(*inputs)


def _waves(step: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return sines and cosines of each step: (batch, WIDTH)."""
    rates = torch.exp(-math.log(10000.0) * torch.arange(WIDTH // 2, device=step.device) / (WIDTH // 2))
    angles = step[:, None].to(torch.float32) * rates.to(torch.float32)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(dtype)

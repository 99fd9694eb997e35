"""Vision transformer: patches, a class token, learned positions, bidirectional blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from conformance.suites.parameters import spread_constants

from .blocks import Block


@dataclass(frozen=True)
class ViTShape:
    """Sizes of the vision transformer; ``image`` and ``patch`` are side lengths in pixels."""

    image: int = 8
    patch: int = 4
    classes: int = 10
    width: int = 48
    heads: int = 4
    layers: int = 2

    @property
    def patches(self) -> int:
        """Return the number of patches of an image."""
        return (self.image // self.patch) ** 2


class ViT(nn.Module):
    """Image classifier with transformer blocks.

    Patches are embedded by a reshape and a matrix product, not by a convolution. PyTorch's defaults let convolutions,
    but not products, round float32 inputs to fewer bits (tf32) on some devices.
    """

    def __init__(self, shape: ViTShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Linear(shape.patch**2, shape.width)
        self.first = nn.Parameter(torch.randn(1, 1, shape.width) * 0.2)
        self.positions = nn.Parameter(torch.randn(1, shape.patches + 1, shape.width) * 0.2)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.heads, causal=False, dropout=dropout) for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)
        spread_constants(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, classes) of ``images`` (batch, side, side)."""
        side = self.shape.patch
        patches = images.unfold(1, side, side).unfold(2, side, side).flatten(3).flatten(1, 2)
        x = self.embed(patches)
        x = torch.cat((self.first.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x[:, 0]))

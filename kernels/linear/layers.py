"""Frozen and LoRA linear layers; ``conformance.kernels.linear`` describes their meaning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conformance.kernels.arguments import wrong
from conformance.kernels.linear.storage import Codec, Shards
from conformance.kernels.sharded.layout import Layout

_HINT = "make the layer with another one"


class FrozenLinear(nn.Module):
    """Linear layer whose weight is never trained, quantized by ``codec`` and sharded over ``shards``.

    The buffer ``weight`` is the stored form: the weight itself, a flat part of it, or rows of bytes. ``linear`` keeps
    its own weight; its bias, a parameter, becomes this layer's.
    """

    weight: Tensor
    _like: Tensor

    def __init__(self, linear: nn.Linear, codec: Codec | None = None, shards: Shards | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self.codec, self.shards = codec, shards
        self.bias: nn.Parameter | None = linear.bias
        # Rows of bytes do not change in module.to(dtype). This empty tensor does, and so keeps the module's dtype.
        self.register_buffer("_like", linear.weight.detach().new_empty(0), persistent=False)
        self.register_buffer("weight", self._stored(linear.weight.detach()))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the decoded weight: that of the module."""
        return self._like.dtype

    @property
    def _layout(self) -> Layout:
        return Layout((self.out_features, self.in_features), self.shards.size if self.shards else 1)

    def forward(self, source: Tensor) -> Tensor:
        """Return ``source`` (..., inputs) times the decoded weight, plus the bias: (..., outputs)."""
        return functional.linear(source, self.full_weight(), self.bias)

    @torch.no_grad()
    def full_weight(self) -> Tensor:
        """Return the decoded weight (outputs, inputs); if it is sharded, all ranks have to call this together."""
        if self.codec is None and self.shards is None:
            return self.weight
        stored = self.weight if self.shards is None else self.shards.gathered(self.weight)
        layout = self._layout
        if self.codec is not None:
            # The padding of each rank's last group is removed.
            parts = self.codec.decoded(stored, self.dtype).view(layout.world_size, -1)
            stored = parts[:, : layout.length].reshape(-1)
        return layout.whole(stored)

    def extra_repr(self) -> str:
        kept = self.codec.stored_as.name.lower() if self.codec else str(self.dtype)
        ranks = f", on {self.shards.size} ranks" if self.shards else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, stored as {kept}{ranks}"

    def _stored(self, weight: Tensor) -> Tensor:
        """Return the part of the weight that this rank keeps, quantized if there is a codec."""
        part = weight if self.shards is None else self._layout.rows(weight)[self.shards.rank]
        if self.codec is None:
            # A copy, because a view would keep the whole weight in memory.
            return part.clone()
        self.codec.check(weight.dtype)
        return self.codec.coded(part.reshape(-1))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a checkpoint; a whole weight in it is converted to this layer's stored form.

        Without the conversion, floats copied into a tensor of bytes would be cut to integers.
        """
        name, errors = f"{prefix}weight", rest[-1]
        given = state_dict.get(name)
        if isinstance(given, Tensor) and given.is_floating_point() and (self.codec or self.shards):
            if tuple(given.shape) == (self.out_features, self.in_features):
                state_dict = {**state_dict, name: self._stored(given.to(self.weight.device, self.dtype))}
            elif self.codec:
                shapes = f"the whole weight {(self.out_features, self.in_features)}, or rows of bytes"
                errors.append(f"{name} holds floats of shape {tuple(given.shape)}; expected {shapes}.")
                state_dict = {**state_dict, name: self.weight}
        super()._load_from_state_dict(state_dict, prefix, *rest)


class LoRALinear(nn.Module):
    """Frozen layer, plus the product of two small trained matrices: ``down`` (A) and ``up`` (B)."""

    def __init__(self, base: FrozenLinear | nn.Linear, rank: int = 64, alpha: float = 16.0) -> None:
        super().__init__()
        if rank < 1:
            raise wrong("rank", "at least 1", rank, _HINT)
        self.base = base if isinstance(base, FrozenLinear) else FrozenLinear(base)
        self.base.requires_grad_(False)
        self.scaling = alpha / rank
        like = self.base._like
        self.down = nn.Parameter(like.new_empty(rank, self.base.in_features))
        self.up = nn.Parameter(like.new_zeros(self.base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self._merged: Tensor | None = None

    @property
    def merged(self) -> bool:
        """Return True if the layer computes with one merged matrix; A and B get no gradient then."""
        return self._merged is not None

    def forward(self, source: Tensor) -> Tensor:
        """Return the base layer's output (..., outputs) plus the low-rank product, or that of the merged matrix."""
        if self._merged is not None:
            return functional.linear(source, self._merged, self.base.bias)
        low_rank = functional.linear(functional.linear(source, self.down), self.up)
        found: Tensor = self.base(source) + self.scaling * low_rank
        return found

    @torch.no_grad()
    def merge(self) -> None:
        """Compute with one matrix from now on, made of the base and the current A and B. The base is kept."""
        base = self.base.full_weight()
        wide = torch.promote_types(base.dtype, torch.float32)
        self._merged = (base.to(wide) + self.scaling * (self.up.to(wide) @ self.down.to(wide))).to(base.dtype)

    def unmerge(self) -> None:
        """Compute with the base, A and B again."""
        self._merged = None

    def _apply(self, fn: Any, recurse: bool = True) -> LoRALinear:
        """Unmerge, then apply ``fn``: the merged matrix would stay on the old device and in the old dtype."""
        self.unmerge()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

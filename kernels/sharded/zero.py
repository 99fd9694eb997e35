"""ZeRO stages 1 and 2: gradients are reduced to shards after backward passes (1) or during them (2)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.sharded.buckets import GradientBuckets

STAGES = (1, 2)


class ZeroGradients:
    """Reduction of the gradients of ``parameters`` as in ZeRO, through buckets of ``elements`` elements.

    In stage 1 each parameter keeps its gradient, which adds up over backward passes as usual. ``reduce`` sends the sums
    through the buckets, once an update.

    In stage 2 a gradient goes into a bucket as soon as backward has computed it, and is then released. The shards add
    up. This costs collectives in every pass, and saves the memory of whole gradients between passes.

    Both stages give the same shards if the sums are exact. Gradients have to come in the same order on all ranks, so
    the same parameters have to take part in the same passes. Raises UsageError for another stage, and in the same cases
    as GradientBuckets.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        elements: int,
        group: dist.ProcessGroup | None = None,
        *,
        stage: int,
        double_buffer: bool = True,
    ) -> None:
        if stage not in STAGES:
            raise UsageError(f"stage {stage} is not one that shards gradients only.\n  give 1 or 2")
        self.buckets = GradientBuckets(elements, group, double_buffer=double_buffer)
        self._parameters, self._stage = dict(parameters), stage
        for name, parameter in self._parameters.items():
            self.buckets.add(name, parameter)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._take, name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
            if stage == 2
        ]

    def reduce(self) -> None:
        """Complete every ``shard``. Call it after the last backward pass before an update."""
        if self._stage == 1:
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    self.buckets.reduce(name, parameter.grad)
        self.buckets.end_backward()

    def shard(self, name: str) -> Tensor:
        """Return this rank's part of the flat mean over ranks, added up over the passes since ``clear``."""
        return self.buckets.shard(name)

    def clear(self) -> None:
        """Delete gradients and shards after an update of the parameters."""
        self.buckets.clear()
        for parameter in self._parameters.values():
            parameter.grad = None

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _take(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.buckets.reduce(name, parameter.grad)
        parameter.grad = None  # the bucket has copied it

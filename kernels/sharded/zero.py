"""ZeRO's stages 1 and 2: the gradients of parameters, reduced to shards behind backward passes or in them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from conformance.errors import UsageError
from conformance.kernels.sharded.buckets import GradientBuckets

STAGES = (1, 2)


class ZeroGradients:
    """Feeds the gradients of ``parameters`` to buckets of ``elements`` elements, as a ZeRO stage does.

    Stage 1: each parameter keeps its gradient, which adds up over backward passes as usual; ``reduce`` sends what has
    come together through the buckets, once an update. Stage 2: a gradient goes into a bucket as soon as backward has
    it, and is released; the shards add up. One collective more a pass, and no whole gradients between passes.

    Both give the same shards where the sums are exact. Gradients have to come in the same order on all ranks: the same
    parameters take part in the same passes. Raises UsageError for another stage and as GradientBuckets does.
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
            raise UsageError(f"stage {stage} does not shard gradients alone.\n  give 1 or 2")
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
        """Behind the last backward pass before an update: afterwards every ``shard`` is complete."""
        if self._stage == 1:
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    self.buckets.reduce(name, parameter.grad)
        self.buckets.end_backward()

    def shard(self, name: str) -> Tensor:
        """This rank's part of the flat mean over ranks, added up over the passes since ``clear``."""
        return self.buckets.shard(name)

    def clear(self) -> None:
        """The parameters are updated: the next passes begin anew."""
        self.buckets.clear()
        for parameter in self._parameters.values():
            parameter.grad = None

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _take(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.buckets.reduce(name, parameter.grad)
        parameter.grad = None  # it is in the bucket, which has copied it

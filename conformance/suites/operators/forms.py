"""Other forms of an operator's call, with ``out=`` and in place: their kernels may be others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves

from .arrangements import poisoned
from .execution import OperatorSample


def others(info, usual) -> Iterator[tuple[str, Callable]]:
    """Yield the name of each other form and a function of (``call`` or ``execute``, sample); ``usual`` is a result."""
    made = leaves(usual)
    if info.supports_out and all(isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in made):

        def into(run, sample: OperatorSample):
            outs = tuple(copied(poisoned(leaf.shape, leaf.dtype), sample.device) for leaf in made)
            return run(info.op, sample, out=outs if isinstance(usual, tuple) else outs[0])

        yield "out= variant", into
    if info.inplace_variant is not None:
        yield "in-place variant", lambda run, sample: run(info.inplace_variant, sample)

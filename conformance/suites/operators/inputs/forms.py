"""Other forms of an operator's call, with ``out=`` and in place: their kernels may be others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.numerics.trees import leaves
from conformance.suites.operators.calls.calls import Call

from .arrangements import poisoned

#: Names of the forms.
OUT, IN_PLACE = "out= variant", "in-place variant"


def others(info: Any, given: Call, usual: Any) -> Iterator[Call]:
    """Yield the call in each other form that the operator has; ``usual`` is the result of the plain form."""
    made = leaves(usual)
    if info.supports_out and all(isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in made):
        outs = tuple(poisoned(leaf.shape, leaf.dtype) for leaf in made)
        yield given.into(OUT, info.op, out=outs if isinstance(usual, tuple) else outs[0])
    if info.inplace_variant is not None:
        yield given.into(IN_PLACE, info.inplace_variant)

"""Batches with one matrix that has no factorisation or no inverse: an operator refuses it, wherever it is.

Each matrix of a batch has a status of its own, and a check of the first one alone misses the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from . import execution, sampling
from .classes import is_factorisation
from .execution import HOST, OperatorSample, call
from .variants import attempt, settled


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Check that the device refuses a batch whose first or last matrix is zero, if PyTorch's CPU calls it singular."""
    if not is_factorisation(info) or not sampling.is_first_dtype(info, dtype):
        return
    for sample in samples:
        if any(_is_batch(tensor) for tensor in sample.tensors[:1]):
            found = [_check(info, judge, spoilt) for spoilt in _with_zeros(sample)]
            if any(found):
                return


def _check(info, judge, sample: OperatorSample) -> bool:
    """Check one call; return whether the host refuses it, so that it could be checked."""
    if not isinstance(attempt(call, info.op, sample.on(HOST)).error, torch.linalg.LinAlgError):
        return False
    found = settled(attempt(execution.execute, info.op, sample.on(judge.device)))
    judge.check.that(found.error is not None, f"{sample}: accepted, and it is singular or not positive definite")
    return True


def _is_batch(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 2 and tensor.shape[0] > 1 and tensor.numel() > 0 and tensor.shape[-1] == tensor.shape[-2]


def _with_zeros(sample: OperatorSample) -> Iterator[OperatorSample]:
    """Yield the sample with zeros in the place of the first and of the last matrix of its first tensor."""
    first = sample.tensors[0]
    for name, place in (("first", 0), ("last", -1)):
        changed = first.detach().clone()
        changed[place] = 0
        other = sample.with_tensor(first, changed.requires_grad_(first.requires_grad))
        yield replace(other, tier=f"zeros in the {name} matrix")

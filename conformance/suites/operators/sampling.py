"""Which samples of an operator are compared: few, evenly spread, deterministic, and small."""

from __future__ import annotations

import itertools

import torch

from .execution import Sample
from .settings import limits


def pick(info, dtype: torch.dtype, *, requires_grad: bool, count: int) -> list[Sample]:
    """Up to ``count`` samples, drawn on the host from the seeded generators."""
    generated = info.sample_inputs("cpu", dtype, requires_grad=requires_grad, set_seed=False)
    return _within_budget(_spread(_small(_prefix(generated)), count))


def _prefix(generated) -> list[Sample]:
    """The first samples, until they are many or large: generators hold thousands, or millions of numbers."""
    samples, scanned = [], 0
    for number, sample in enumerate(itertools.islice(generated, limits().generation.prefix)):
        samples.append(Sample.of(number, sample))
        scanned += elements(samples[-1])
        if scanned > limits().generation.scanned:
            break
    return samples


def _small(samples: list[Sample]) -> list[Sample]:
    """Without the large ones; the smallest of all stays even when it is large."""
    small = [sample for sample in samples if elements(sample) <= limits().generation.elements]
    return small or sorted(samples, key=elements)[:1]


def _spread(samples: list[Sample], count: int) -> list[Sample]:
    if len(samples) <= count:
        return samples
    step = (len(samples) - 1) / max(count - 1, 1)
    return [samples[round(i * step)] for i in range(count)]


def _within_budget(samples: list[Sample]) -> list[Sample]:
    kept, spent = [], 0
    for sample in samples:
        spent += elements(sample)
        if kept and spent > limits().generation.cell_elements:
            break
        kept.append(sample)
    return kept


def elements(sample: Sample) -> int:
    return sum(tensor.numel() for tensor in sample.tensors)

"""Which samples of an operator are compared: few, evenly spread, deterministic, and small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from conformance.numerics.trees import tensors

from .execution import Sample
from .settings import limits

#: Operators whose samples keep no tensor on the host.
_MOVES_ALL: set[str] = set()


def pick(info, dtype: torch.dtype, *, requires_grad: bool, extent) -> list[Sample]:
    """Up to ``extent.samples`` of the first ``extent.prefix``, drawn on the host from the seeded generators."""
    with _nothing_but_the_host():
        generated = info.sample_inputs("cpu", dtype, requires_grad=requires_grad, set_seed=False)
        picked = _within_budget(_spread(_small(_prefix(generated, extent.prefix)), extent.samples))
        return _with_host_arguments(picked, info, dtype, requires_grad=requires_grad)


@contextmanager
def _nothing_but_the_host() -> Iterator[None]:
    """Hide CUDA and Metal from the database.

    It adds samples on either where torch says that it is available. What is compared may not depend on the machine,
    and some vendors' packages answer for ``torch.cuda`` without being able to make a CUDA tensor.
    """
    with mock.patch.object(torch.cuda, "is_available", _no), mock.patch.object(torch.mps, "is_available", _no):
        yield


def _no() -> bool:
    return False


def _with_host_arguments(picked: list[Sample], info, dtype: torch.dtype, *, requires_grad: bool) -> list[Sample]:
    """Note which tensors stay on the host: those that the database makes there even when asked for another device.

    Only indices and lengths do, so samples without integer arguments are not generated twice; and only those of four
    operators (torch 2.13), in every dtype, so an operator without any is not asked again in this process.
    """
    if info.full_name in _MOVES_ALL or not any(_has_index(sample) for sample in picked):
        return picked
    with torch.random.fork_rng(devices=()):
        places = _host_places(info, dtype, requires_grad=requires_grad)
    if not any(places.values()):
        _MOVES_ALL.add(info.full_name)
    return [replace(sample, on_host=places.get(sample.number, frozenset())) for sample in picked]


def _has_index(sample: Sample) -> bool:
    return any(not (t.is_floating_point() or t.is_complex()) for t in tensors([sample.args, sample.kwargs]))


def _host_places(info, dtype: torch.dtype, *, requires_grad: bool) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    try:
        generated = info.sample_inputs("meta", dtype, requires_grad=requires_grad, set_seed=False)
        for number, sample in enumerate(itertools.islice(generated, limits().inference.prefix)):
            made = enumerate(Sample.of(number, sample).tensors)
            found[number] = frozenset(position for position, tensor in made if not tensor.is_meta)
    except Exception:  # samples that look at their own values cannot be made without any
        return {}
    return found


def _prefix(generated, length: int) -> list[Sample]:
    """The first samples, until they are many or large: generators hold thousands, or millions of numbers."""
    samples, scanned = [], 0
    for number, sample in enumerate(itertools.islice(generated, length)):
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

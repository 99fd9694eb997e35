"""Selection of the samples of an operator: few, evenly spread, deterministic, and small."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from conformance.numerics.trees import tensors

from . import repeated_writes
from .calls import Call
from .factors import with_positive_diagonal
from .facts import facts
from .work import Extent

#: Full names of the operators whose samples keep no tensor on the host.
_MOVES_ALL: set[str] = set()


def pick(info: Any, dtype: torch.dtype, *, requires_grad: bool, extent: Extent) -> list[Call]:
    """Return up to ``extent.samples`` of the first ``extent.prefix`` samples, made on the host."""
    with host_only():
        generated = info.sample_inputs("cpu", dtype, requires_grad=requires_grad, set_seed=False)
        defined = [sample for sample in _prefix(generated, extent) if not repeated_writes.are_in(info, sample)]
        picked = _within_budget(_chosen(_small(defined, extent), extent.samples), extent)
        if facts(info.name).determined:
            picked = [replace(sample, process=None) for sample in picked]
        if facts(info.name).open_signs:
            picked = [replace(sample, process=with_positive_diagonal) for sample in picked]
        return _with_host_arguments(picked, info, dtype, extent, requires_grad=requires_grad)


@contextmanager
def host_only() -> Iterator[None]:
    """Hide CUDA and Metal from PyTorch's database, and from other libraries that ask for them.

    The database adds samples on either if torch says that it is available. The samples must not depend on the machine,
    and some vendors' packages answer for ``torch.cuda`` although they cannot make a CUDA tensor.
    """
    with mock.patch.object(torch.cuda, "is_available", _no), mock.patch.object(torch.mps, "is_available", _no):
        yield


def _no() -> bool:
    """Return False, as the answer whether CUDA or Metal is available."""
    return False


def _with_host_arguments(
    picked: list[Call], info: Any, dtype: torch.dtype, extent: Extent, *, requires_grad: bool
) -> list[Call]:
    """Return the samples with the positions of the tensors that stay on the host.

    The database makes these tensors on the host even for another device. To find them, the samples are generated a
    second time, on meta. That is avoided where possible: only indices and lengths stay on the host, so samples without
    integer arguments have none. Only four operators (torch 2.13) have such tensors, and they have them in every dtype.
    For any other operator the second generation therefore happens once per process.
    """
    if info.full_name in _MOVES_ALL or not any(_has_index(sample) for sample in picked):
        return picked
    with torch.random.fork_rng(devices=()):  # the second generation must not change later draws
        places = _host_places(info, dtype, extent, requires_grad=requires_grad)
    if not any(places.values()):
        _MOVES_ALL.add(info.full_name)
    return [replace(sample, on_host=places.get(sample.number, frozenset())) for sample in picked]


def _has_index(sample: Call) -> bool:
    """Return whether an argument beside the first input is a tensor of integers or truth values."""
    return any(not (t.is_floating_point() or t.is_complex()) for t in tensors([sample.args, sample.kwargs]))


def _host_places(info: Any, dtype: torch.dtype, extent: Extent, *, requires_grad: bool) -> dict[int, frozenset[int]]:
    """Return the positions of the tensors that a generator makes on the host whatever its device is, by sample."""
    found: dict[int, frozenset[int]] = {}
    try:
        # On meta nothing is computed; a tensor that is not on meta was made on the host.
        generated = info.sample_inputs("meta", dtype, requires_grad=requires_grad, set_seed=False)
        for number, sample in enumerate(itertools.islice(generated, extent.indexed)):
            made = enumerate(Call.of(number, sample).tensors)
            found[number] = frozenset(position for position, tensor in made if not tensor.is_meta)
    except Exception:  # some generators read the values of their tensors, and meta tensors have none
        return {}
    return found


def _prefix(generated: Iterable[Any], extent: Extent) -> list[Call]:
    """Return the first samples, fewer if they are large: some generators hold thousands, with millions of numbers."""
    samples, scanned, filled = [], 0, False
    for number, sample in enumerate(itertools.islice(generated, extent.longest)):
        # Some generators begin with empty tensors, on which nothing is computed: then the first that are not follow.
        if number >= extent.prefix and (filled or not _is_filled(Call.of(number, sample))):
            if filled:
                break
            continue
        samples.append(Call.of(number, sample))
        filled = filled or _is_filled(samples[-1])
        scanned += samples[-1].elements
        if scanned > extent.scanned:
            break
    return samples


def _is_filled(sample: Call) -> bool:
    """Return whether no tensor of the sample is empty."""
    return all(tensor.numel() for tensor in sample.tensors)


def _chosen(samples: list[Call], count: int) -> list[Call]:
    """Return ``count`` samples, spread evenly. If all of these have an empty tensor, the last is one that has none."""
    chosen = _spread(samples, count)
    if any(map(_is_filled, chosen)):
        return chosen
    filled = next((sample for sample in samples if _is_filled(sample)), None)
    return chosen if filled is None else [*chosen[:-1], filled]


def _small(samples: list[Call], extent: Extent) -> list[Call]:
    """Return the samples that are not too large, or the smallest one if all are."""
    small = [sample for sample in samples if sample.elements <= extent.elements]
    return small or sorted(samples, key=lambda sample: sample.elements)[:1]


def _spread(samples: list[Call], count: int) -> list[Call]:
    """Return at most ``count`` samples at equal distances, the first and the last among them."""
    if len(samples) <= count:
        return samples
    # Both ends are included.
    step = (len(samples) - 1) / max(count - 1, 1)
    return [samples[round(i * step)] for i in range(count)]


def _within_budget(samples: list[Call], extent: Extent) -> list[Call]:
    """Return the first samples that together stay below the cell's limit of elements; at least one."""
    kept: list[Call] = []
    spent = 0
    for sample in samples:
        spent += sample.elements
        if kept and spent > extent.cell_elements:
            break
        kept.append(sample)
    return kept

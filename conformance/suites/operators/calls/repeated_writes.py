"""Calls that write two values to one place: which of them stays is open, so no result is wrong.

The documentation of ``scatter``, ``index_copy``, ``index_put``, ``put`` and ``max_unpool`` says so, and that of
``as_strided`` about views whose elements share memory. In a parallel kernel any of them may be the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from .calls import Call


def are_in(info: Any, sample: Call) -> bool:
    """Return whether the call writes two values to one place, and adds up none of them."""
    places = _PLACES.get(info.name)
    return places is not None and any(_repeats(rows) for rows in places(sample))


def _repeats(rows: torch.Tensor) -> bool:
    """Return whether a row of places, along the last dimension, has one twice."""
    ordered = rows.sort(dim=-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _of_scatter(sample: Call) -> list[torch.Tensor]:
    """Return the places that ``scatter`` writes to, with its dimension as the last one."""
    dim, index, source = sample.args
    if not isinstance(source, torch.Tensor) or sample.kwargs.get("reduce") or not index.dim():
        return []  # one value for all places
    return [index.movedim(dim, -1)]


def _of_index_copy(sample: Call) -> list[torch.Tensor]:
    """Return the places that ``index_copy`` writes to."""
    return [sample.args[1].reshape(-1)]


def _of_put(sample: Call) -> list[torch.Tensor]:
    """Return the places in the flat tensor that ``put`` writes to; none if it adds up."""
    if _adds_up(sample):
        return []
    index, size = sample.args[0].reshape(-1), sample.input.numel()
    return [torch.where(index < 0, index + size, index)]


def _of_index_put(sample: Call) -> list[torch.Tensor]:
    """Return as many equal places as ``index_put`` writes to one at most; none if it adds up."""
    indices, values = sample.args[:2]
    if _adds_up(sample) or values.numel() < 2:
        return []
    counts = torch.zeros(sample.input.shape, dtype=torch.int64).index_put(
        tuple(indices), torch.ones((), dtype=torch.int64), accumulate=True
    )
    # As many equal places as the most that are written to one place.
    return [torch.zeros(int(counts.max()) if counts.numel() else 0)]


def _of_as_strided_scatter(sample: Call) -> list[torch.Tensor]:
    """Return the places in memory that ``as_strided_scatter`` writes to: strides may give two elements one place."""
    size, stride = sample.args[1:3]
    if 0 in size:
        return []
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return [torch.arange(last + 1).as_strided(size, stride).reshape(-1)]


def _of_max_unpool(dims: int) -> Callable[[Call], list[torch.Tensor]]:
    """Return a function for the places that ``max_unpool`` writes to in images of so many dimensions."""
    return lambda sample: [sample.args[0].flatten(-dims)]


def _adds_up(sample: Call) -> bool:
    """Return whether an argument is True: of ``put`` and ``index_put``, this is ``accumulate``."""
    return any(value is True for value in (*sample.args, *sample.kwargs.values()))


#: The places that a call writes, for each operator that does not add up what it writes: rows of numbers.
_PLACES: Final[dict[str, Callable[[Call], list[torch.Tensor]]]] = {
    "scatter": _of_scatter,
    "index_copy": _of_index_copy,
    "index_put": _of_index_put,
    "put": _of_put,
    "as_strided_scatter": _of_as_strided_scatter,
    **{f"nn.functional.max_unpool{dims}d": _of_max_unpool(dims) for dims in (1, 2, 3)},
}

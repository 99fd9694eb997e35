"""Results of which PyTorch's documentation leaves something open: the order of eigenvalues, and which index is named.

The device's results are brought into the host's form before values are compared.
"""

from __future__ import annotations

import torch

from conformance.numerics.compare import plain

from .execution import OperatorSample
from .sampling import limits


def in_order_of(info, actual: list, expected: list) -> tuple[list, bool]:
    """Return the device's outputs in the host's order of eigenvalues, and whether it was the device's order too.

    Each eigenvalue of the host takes the nearest one of the device that is left. Eigenvectors move with their values.
    """
    if info is None or info.name not in limits().order.open or not isinstance(expected[0], torch.Tensor):
        return actual, True
    found, wanted = plain(actual[0]), plain(expected[0])
    if found.shape != wanted.shape or not wanted.numel() or not bool(found.isfinite().all()):
        return actual, True
    size = wanted.shape[-1]
    pairs = zip(found.reshape(-1, size), wanted.reshape(-1, size), strict=True)
    order = torch.stack([_nearest(each, target) for each, target in pairs])
    if torch.equal(order, torch.arange(size).expand_as(order)):
        return actual, True
    order = order.reshape(wanted.shape)
    values, *vectors = (plain(leaf) for leaf in actual)
    columns = [vector.gather(-1, order.unsqueeze(-2).expand(vector.shape)) for vector in vectors]
    return [values.gather(-1, order), *columns], False


def _nearest(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    distance = (found.unsqueeze(0) - wanted.unsqueeze(1)).abs()
    order = []
    for row in distance:
        order.append(int(row.argmin()))
        distance[:, order[-1]] = float("inf")
    return torch.tensor(order)


def with_indices_of(info, sample: OperatorSample, actual: list, expected: list) -> list:
    """Return the device's outputs with the host's indices if each of its own indices leads to its value.

    Of several equal elements, the operator may name any.
    """
    if info is None or info.name not in limits().indices.of_any_equal or len(actual) != 2:
        return actual
    values, indices = (plain(leaf) for leaf in actual)
    if indices.dtype is torch.int64 and _lead_to(plain(sample.input), indices, values):
        return [actual[0], expected[1]]
    return actual


def _lead_to(source: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether the indices along one of the dimensions of ``source`` lead to the values."""
    for dim in range(source.dim()):
        for keeps in (True, False):
            at, target = (each if keeps else each.unsqueeze(dim) for each in (indices, values))
            fits = at.dim() == source.dim() and at.shape[dim] == 1
            others = [size for i, size in enumerate(source.shape) if i != dim]
            if not fits or [size for i, size in enumerate(at.shape) if i != dim] != others:
                continue
            if bool(((at >= 0) & (at < source.shape[dim])).all()):
                return torch.equal(source.gather(dim, at).nan_to_num(), target.nan_to_num())
    return False

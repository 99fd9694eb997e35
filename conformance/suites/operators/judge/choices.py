"""Results that an operator's documentation leaves open: indices of equal elements, orders that nobody asked for.

PyTorch's CPU makes one choice. If a device makes another one that is as good, its choice becomes the expected result.
``facts.toml`` names the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import leaves
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.facts import facts

Leaves = list[Any]


def settled(info: Any, sample: Call, actual: Leaves, expected: Leaves) -> Leaves:
    """Return the expected leaves, with the device's own values where these are as good as the host's."""
    if info is None or not may_choose(info) or len(actual) != len(expected) or not _alike(actual, expected):
        return expected
    found, wanted = [plain(leaf) for leaf in actual], [plain(leaf) for leaf in expected]
    if facts(info.name).window_dims is not None:
        return _largest(info, sample, found, wanted) or expected
    choice = _CHOICES.get(info.name)
    return (choice(info.name, sample, found, wanted) if choice is not None else None) or expected


def has_choice(info: Any) -> bool:
    """Return whether the documentation leaves a result of the operator open, for values of any kind."""
    return info.name in _CHOICES or facts(info.name).open_order


def may_choose(info: Any) -> bool:
    """Return whether the documentation leaves a result of the operator open, be it for equal elements alone."""
    return has_choice(info) or facts(info.name).window_dims is not None


def agree(info: Any, sample: Call, actual: Leaves, expected: Leaves) -> bool:
    """Return whether the device has made the host's choice, so that results that follow from it can be compared.

    This holds for every operator without a choice, also if its results are wrong.
    """
    if facts(info.name).open_order:
        return in_order_of(info, actual, expected)[1]
    wanted = settled(info, sample, actual, expected)
    return all(new is old or same_bits(plain(new), plain(old)) for new, old in zip(wanted, expected, strict=True))


def gradient(info: Any, sample: Call, actual: Leaves, cotangent: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of the input for the elements that the device has chosen; None for other operators."""
    picks = facts(info.name).window_dims is not None
    gathers = picks or facts(info.name).gathers
    if not gathers or len(actual) < 2 or sample.input.dim() == 0:
        return None
    x, index = sample.input, plain(actual[1])
    if picks:
        rows, dim = _rows(info, sample, x.detach())
        index, cotangent = (_rows(info, sample, each)[0] for each in (index, cotangent))
        return torch.zeros_like(rows).scatter_add(dim, index, cotangent.to(x.dtype)).view(x.shape)
    dim = _dim(info.name, sample)
    index, cotangent = (_along(x, dim, each) for each in (index, cotangent))
    return torch.zeros_like(x.detach()).scatter_add(dim, index, cotangent.to(x.dtype))


def settled_gradient(info: Any, sample: Call, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the expected gradient of the input, with the device's own values where it chose other equal elements.

    This is for operators that choose without an index among their results.
    """
    hides, counts = facts(info.name).hides_choice, facts(info.name).window_dims
    if not (hides or counts) or not found.shape == wanted.shape == sample.input.shape:
        return wanted
    x, found_values, wanted_values = sample.input.detach(), plain(found), plain(wanted)
    if same_bits(found_values, wanted_values):
        return wanted
    if hides and torch.equal(_pairs(x, found_values), _pairs(x, wanted_values)):
        return found_values
    if counts and x.dim():
        return _among_ties(*(_rows(info, sample, each)[0] for each in (x, found_values, wanted_values))).view(x.shape)
    return wanted


def _among_ties(rows: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return ``wanted``, with ``found`` in equal elements of a row that have the same gradient together."""
    places = torch.arange(rows.numel() // max(rows.shape[-1], 1)).unsqueeze(-1).expand(-1, rows.shape[-1]).flatten()
    keys = torch.stack([places.double(), rows.flatten().double().nan_to_num()])
    _, group, counts = torch.unique(keys, dim=1, return_inverse=True, return_counts=True)
    sums = [torch.zeros(len(counts), dtype=torch.float64).scatter_add(0, group, t.flatten().double()) for t in
            (found, wanted, wanted.abs())]  # fmt: skip
    # Each gradient is a sum of some cotangents in the dtype of the input.
    close = (sums[0] - sums[1]).abs() <= counts * torch.finfo(wanted.dtype).eps * sums[2]
    tied = ((counts > 1) & close)[group].view(wanted.shape)
    return torch.where(tied, found, wanted)


def _pairs(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return all pairs of an element and its gradient, sorted by both."""
    values, slopes = x.detach().flatten().double(), gradient.flatten().double()
    order = slopes.argsort(stable=True)
    order = order[values[order].argsort(stable=True)]
    return torch.stack([values[order], slopes[order]]).nan_to_num()


def _alike(actual: Leaves, expected: Leaves) -> bool:
    """Return whether two lists of results are tensors of the same dtypes."""
    pairs = zip(actual, expected, strict=True)
    return all(isinstance(a, torch.Tensor) and isinstance(e, torch.Tensor) and a.dtype == e.dtype for a, e in pairs)


def _argument(sample: Call, name: str, position: int, default: Any) -> Any:
    """Return an argument that is given by name or at a position, or its default."""
    if name in sample.kwargs:
        return sample.kwargs[name]
    return sample.args[position] if position < len(sample.args) else default


def _dim(name: str, sample: Call) -> int:
    """Return the dimension along which a call chooses."""
    position = facts(name).choice_dim
    assert position is not None, name
    return int(_argument(sample, "dim", position, -1))


def _along(x: torch.Tensor, dim: int, reduced: torch.Tensor) -> torch.Tensor:
    """Return a result along a dimension of ``x`` with as many dimensions as ``x`` has, kept or not."""
    return reduced if reduced.dim() == x.dim() else reduced.unsqueeze(dim)


def _equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return where two tensors are equal; NaN equals NaN."""
    return (left == right) | ((left != left) & (right != right))


def _picks(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether the elements of ``x`` at different indices along ``dim`` are the values."""
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < x.shape[dim]):
        return False
    ordered = index.sort(dim).values
    distinct = bool((ordered.diff(dim=dim) != 0).all())
    return distinct and bool(_equal(x.gather(dim, index), values).all())


def are_held(info: Any, sample: Call, found: Leaves) -> bool:
    """Return whether the places that an operator gives hold its values, whichever of them it chose.

    ``found`` are values and places. A choice without places, or of a tensor without dimensions, is held.
    """
    x = sample.input.detach()
    if len(found) < 2 or x.dim() == 0:
        return True
    dim = _dim(info.name, sample)
    values, index = (_along(x, dim, leaf) for leaf in found)
    return not x.shape[dim] or _picks(x, dim, index, values)


def _ordered(name: str, sample: Call, found: Leaves, wanted: Leaves) -> Leaves | None:
    """Settle sort, argsort and topk: the indices of equal elements are open, and of an unsorted topk the order."""
    x = sample.input.detach()
    if x.dim() == 0 or sample.kwargs.get("stable") or found[-1].shape != wanted[-1].shape:
        return None
    dim, index = _dim(name, sample), found[-1]
    if name == "argsort":
        return [index] if _picks(x, dim, index, x.gather(dim, wanted[0])) else None
    values = wanted[0]
    if name == "topk" and not _argument(sample, "sorted", 3, True):
        same = _equal(found[0].sort(dim).values, values.sort(dim).values)
        values = found[0] if bool(same.all()) else values
    return [values, index] if _picks(x, dim, index, values) else None


def _selected(name: str, sample: Call, found: Leaves, wanted: Leaves) -> Leaves | None:
    """Settle kthvalue, median and mode: the index of an equal element is open, and which of several modes it is."""
    x = sample.input.detach()
    if len(found) < 2 or x.dim() == 0 or any(f.shape != w.shape for f, w in zip(found, wanted, strict=True)):
        return None
    dim = _dim(name, sample)
    values, index = (_along(x, dim, leaf) for leaf in found)
    if not x.shape[dim] or not _picks(x, dim, index, values):
        return None
    if name != "mode":
        return [wanted[0], found[1]]
    most = _along(x, dim, wanted[0])
    as_often = _equal(x, values).sum(dim) == _equal(x, most).sum(dim)
    return found if bool(as_often.all()) else None


def _unsorted(name: str, sample: Call, found: Leaves, wanted: Leaves) -> Leaves | None:
    """Settle unique elements without an order: expect the host's results in the device's order."""
    asked = sample.kwargs
    if asked.get("sorted", True) or asked.get("dim") is not None or found[0].shape != wanted[0].shape:
        return None
    order = wanted[0].argsort()[found[0].argsort().argsort()]
    expected = [wanted[0][order]]
    if asked.get("return_inverse"):
        expected.append(order.argsort()[wanted[1]])
    if asked.get("return_counts"):
        expected.append(wanted[-1][order])
    return expected


def _rows(info: Any, sample: Call, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the tensor with the dimensions that one index counts in one, and that dimension."""
    counted = facts(info.name).window_dims
    if not counted:  # cummax and cummin
        return tensor, _argument(sample, "dim", 0, -1)
    return tensor.contiguous().flatten(-counted), -1


def _largest(info: Any, sample: Call, found: Leaves, wanted: Leaves) -> Leaves | None:
    """Settle cummax, cummin and max pooling with indices: the index of an equal element in the same window is open.

    The host shows which window an element is in: if every chosen element is a little larger, each result is larger.
    """
    x = sample.input.detach()
    if len(found) != 2 or x.dim() == 0 or any(f.shape != w.shape for f, w in zip(found, wanted, strict=True)):
        return None
    rows, dim = _rows(info, sample, x)
    values, index = (_rows(info, sample, leaf)[0] for leaf in found)
    if not index.numel() or not (int(index.min()) >= 0 and int(index.max()) < rows.shape[dim]):
        return None
    if not bool(_equal(rows.gather(dim, index), values).all()) or not bool(_equal(found[0], wanted[0]).all()):
        return None
    away = _next(values, up=info.name != "cummin")
    moved = sample.with_tensor(sample.input, rows.scatter(dim, index, away).view(x.shape))
    try:
        shown = leaves(call(info.op, moved.on(HOST)))[0]
    except Exception:  # the host has no such call, and its choice stays the expected one
        return None
    return [wanted[0], found[1]] if bool(_equal(_rows(info, sample, shown)[0], away).all()) else None


def _next(values: torch.Tensor, *, up: bool) -> torch.Tensor:
    """Return the next numbers of the dtype; an integer or a truth value that has none stays."""
    if values.is_floating_point():
        return torch.nextafter(values, torch.full_like(values, torch.inf if up else -torch.inf))
    if values.dtype is torch.bool:
        return torch.full_like(values, up)
    info = torch.iinfo(values.dtype)
    return torch.where(values == (info.max if up else info.min), values, values + (1 if up else -1))


def _exponent(name: str, sample: Call, found: Leaves, wanted: Leaves) -> Leaves | None:
    """Settle frexp: C leaves the exponents of infinities and NaN open."""
    if found[1].shape != wanted[1].shape:
        return None
    return [wanted[0], torch.where(wanted[0].isfinite(), wanted[1], found[1])]


def in_order_of(info: Any, actual: Leaves, expected: Leaves) -> tuple[Leaves, bool]:
    """Return the device's outputs in the host's order of eigenvalues, and whether it was the device's order too.

    Each eigenvalue of the host takes the nearest one of the device that is left. Eigenvectors move with their values.
    """
    if info is None or not facts(info.name).open_order or not isinstance(expected[0], torch.Tensor):
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
    """Return for each wanted number the position of the nearest found one; each is taken once."""
    distance = (found.unsqueeze(0) - wanted.unsqueeze(1)).abs()
    order = []
    for row in distance:
        order.append(int(row.argmin()))
        distance[:, order[-1]] = float("inf")
    return torch.tensor(order)


_CHOICES: dict[str, Callable[[str, Call, Leaves, Leaves], Leaves | None]] = {
    **dict.fromkeys(("sort", "argsort", "topk"), _ordered),
    **dict.fromkeys(("kthvalue", "median", "nanmedian", "mode"), _selected),
    "unique": _unsorted,
    "frexp": _exponent,
}

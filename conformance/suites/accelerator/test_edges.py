"""Edges of common operations: tensors without elements, NaN in orderings, and integers that overflow."""

from __future__ import annotations

import torch
from torch.nn import functional

from conformance.accelerators.capabilities import DTYPE, MEMORY, Cell, Mode
from conformance.numerics.compare import without_nan
from conformance.numerics.trees import tensors
from conformance.plan.case import Level, case
from conformance.suites.operator_claims import skip_if_denied
from conformance.suites.shared_bodies import assert_computes

EMPTY = {
    "add": lambda d: torch.zeros(3, 0, device=d) + torch.ones(3, 1, device=d),
    "atan2": lambda d: torch.atan2(torch.zeros(0, 5, device=d), torch.ones(5, device=d)),
    "cat": lambda d: torch.cat([torch.zeros(0, device=d), torch.arange(3.0).to(d)]),
    "cumsum": lambda d: torch.zeros(0, 5, device=d).cumsum(0),
    "embedding": lambda d: functional.embedding(
        torch.zeros(0, dtype=torch.int64, device=d), torch.ones(3, 5, device=d)
    ),
    "index": lambda d: torch.arange(5.0).to(d)[torch.zeros(0, dtype=torch.int64, device=d)],
    "layer_norm": lambda d: functional.layer_norm(torch.zeros(0, 5, device=d), (5,)),
    "linear": lambda d: functional.linear(
        torch.zeros(0, 7, device=d), torch.ones(5, 7, device=d), torch.ones(5, device=d)
    ),
    "matmul_inner": lambda d: torch.ones(3, 0, device=d) @ torch.ones(0, 5, device=d),
    "matmul_outer": lambda d: torch.ones(0, 3, device=d) @ torch.ones(3, 5, device=d),
    "mean": lambda d: torch.zeros(0, device=d).mean(),
    "prod": lambda d: torch.zeros(0, 5, device=d).prod(dim=0),
    "softmax": lambda d: torch.softmax(torch.zeros(0, 5, device=d), dim=-1),
    "sort": lambda d: torch.zeros(0, device=d).sort().values,
    "sum": lambda d: torch.zeros(0, device=d).sum(),
    "sum_rows": lambda d: torch.zeros(0, 5, device=d).sum(dim=0),
}


#: The operators of those functions that have another name than theirs.
_EMPTY_OPERATORS = {
    "embedding": "nn.functional.embedding",
    "index": "__getitem__",
    "layer_norm": "nn.functional.layer_norm",
    "linear": "nn.functional.linear",
    "matmul_inner": "matmul",
    "matmul_outer": "matmul",
    "sum_rows": "sum",
}


@case("accelerator.edges.empty", requires=[MEMORY], level=Level.CORE, axes={"function": sorted(EMPTY)})
def test_empty(declaration, device, function):
    """Operations on tensors without elements give the same shapes and values as PyTorch on the host."""
    skip_if_denied(declaration, _EMPTY_OPERATORS.get(function, function))
    expected = EMPTY[function](torch.device("cpu"))

    result = EMPTY[function](device)

    assert result.shape == expected.shape, f"the shape is {tuple(result.shape)}, not {tuple(expected.shape)}"
    same = torch.equal(without_nan(result.cpu(), 7.0), without_nan(expected, 7.0))
    assert same, f"{function} gives {result.tolist()}, not {expected.tolist()}"
    assert_computes(device)


@case("accelerator.edges.empty_gradient", requires=[MEMORY], level=Level.CORE)
def test_empty_gradient(device):
    """A batch without rows gives zero gradients without NaN."""
    layer = torch.nn.Linear(7, 5, device=device)

    layer(torch.zeros(0, 7, device=device)).relu().sum().backward()

    for name, parameter in layer.named_parameters():
        gradient = parameter.grad.cpu()
        assert not gradient.any() and not gradient.isnan().any(), f"{name}: {gradient.tolist()}"
    assert_computes(device)


ORDERED = {
    "amax": lambda x: x.amax(dim=1),
    "amin": lambda x: x.amin(dim=1),
    "argmax": lambda x: x.argmax(dim=1),
    "argmin": lambda x: x.argmin(dim=1),
    # One bound alone lets the infinity of the other side through.
    "clamp": lambda x: [x.clamp(-1.0, 2.0), x.clamp(min=-1.0), x.clamp(max=2.0)],
    "cummax": lambda x: x.cummax(dim=1).values,
    "max": lambda x: x.max(dim=1).values,
    "maximum": lambda x: torch.maximum(x[:, 1:], x[:, :-1]),
    "median": lambda x: x.median(dim=1).values,
    "min": lambda x: x.min(dim=1).values,
    "minimum": lambda x: torch.minimum(x[:, 1:], x[:, :-1]),
    "relu": torch.relu,
    "sort": lambda x: x.sort(dim=1).values,
    "sort_descending": lambda x: x.sort(dim=1, descending=True).values,
    "topk": lambda x: x.topk(3, dim=1).values,
}


#: The operators of those functions that have another name than theirs.
_ORDERED_OPERATORS = {
    "max": "max.reduction_with_dim",
    "min": "min.reduction_with_dim",
    "relu": "nn.functional.relu",
    "sort_descending": "sort",
}


@case("accelerator.edges.nan_order", requires=[MEMORY], level=Level.CORE, axes={"function": sorted(ORDERED)})
def test_nan_order(declaration, device, function):
    """NaN orders above every number, and extremes and medians of a row with NaN are NaN."""
    skip_if_denied(declaration, _ORDERED_OPERATORS.get(function, function))
    nan, inf = float("nan"), float("inf")
    # Comparisons with NaN are False, so a kernel that only compares loses the NaN.
    rows = torch.tensor([[1.0, nan, -inf, 3.0, inf], [nan, nan, nan, nan, nan], [4.0, 2.0, 5.0, 1.0, 3.0]])
    expected = torch.cat(tensors(ORDERED[function](rows)))

    result = torch.cat([each.cpu() for each in tensors(ORDERED[function](rows.to(device)))])

    same = torch.equal(result.isnan(), expected.isnan()) and torch.equal(
        without_nan(result, 7.0), without_nan(expected, 7.0)
    )
    assert same, f"{function} gives {result.tolist()}, not {expected.tolist()}"


# Without a dtype, PyTorch widens sums of small integers to int64.
WRAPPING = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x, y: -x,
    "cumsum": lambda x, y: x.cumsum(0, dtype=x.dtype),
    "sum": lambda x, y: x.sum(dtype=x.dtype),
}
WIDTHS = ("int8", "int16", "int32", "int64", "uint8")


@case(
    "accelerator.edges.wraps",
    requires=[DTYPE],
    axes={
        "dtype": WIDTHS,
        "function": {name: [Cell(f"operators.{name}", mode=Mode.INFERENCE.value)] for name in sorted(WRAPPING)},
    },
)
def test_wraps(check, device, dtype, function):
    """Integers that overflow wrap around; they neither saturate nor widen."""
    info = torch.iinfo(getattr(torch, dtype))
    values = torch.tensor([info.max, info.max - 1, info.min, info.min + 1, 7, 1, 0], dtype=getattr(torch, dtype))
    expected = WRAPPING[function](values, values.flip(0) + 2)

    result = check.result(WRAPPING[function](values.to(device), (values.flip(0) + 2).to(device)))

    assert result.dtype is expected.dtype, f"{function} of {dtype} is {result.dtype}"
    assert result.tolist() == expected.tolist(), f"{function} gives {result.tolist()}, not {expected.tolist()}"

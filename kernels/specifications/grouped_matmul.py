"""Grouped matrix products: many products in one call, each with its own rows, as for a mixture of experts.

Implementations in use leave one point open. This specification decides: rows after the last group are zero.
Uninitialized rows hold values of other tensors, possibly NaN, and a sum over all rows spreads them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Property,
    Refusal,
)

_STORED = (torch.float32, torch.float16, torch.bfloat16)
#: Length of the longest sum in the samples. A budget per sample would be hardly tighter.
_LONGEST = 67
_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=float(_LONGEST),
    source="a sum of at most 67 products in float32, in any order, is within 67 u of the sum of their magnitudes "
    "(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.5); one rounding to the storage dtype",
)


def grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Tensor) -> Tensor:
    """Multiply each group ``g`` of rows of ``mat_a`` by ``mat_b[g]``, as torch's function of the same name does.

    ``offs`` (int32) holds the end of each group. Groups are adjacent and may be empty. With ``mat_a`` (rows, k) and
    ``mat_b`` (groups, k, n) the result is (rows, n), with zeros after the last group. With ``mat_a`` (m, rows) and
    ``mat_b`` (rows, n), the product for the gradients of weights, a group is a range of columns of ``mat_a`` and of
    rows of ``mat_b``; the result is (groups, m, n). Products are summed in float32 or wider.
    """
    ends = offs.tolist()
    groups = list(zip([0, *ends], ends, strict=False))
    if mat_b.dim() == 2:
        return torch.stack([mat_a[:, start:stop] @ mat_b[start:stop] for start, stop in groups])
    result = mat_a.new_zeros(mat_a.shape[0], mat_b.shape[2])
    for group, (start, stop) in enumerate(groups):
        result[start:stop] = mat_a[start:stop] @ mat_b[group]
    return result


def _row_by_row(given: Arguments) -> Mapping[str, Expected]:
    """Compute the products by a 0/1 matrix of group membership: one einsum over all rows and groups."""
    left, right, ends = given["mat_a"].double(), given["mat_b"].double(), given["offs"].tolist()
    rows = left.shape[0] if right.dim() == 3 else right.shape[0]
    # A row's group is the number of ends at or before it. Rows after the last end match no group.
    groups = [sum(row >= end for end in ends) for row in range(rows)]
    member = torch.tensor([[float(own == group) for group in range(len(ends))] for own in groups]).double()
    # Without rows, the tensor of an empty list has one dimension.
    member = member.reshape(rows, len(ends))
    equation = "rk,gkn,rg->rn" if right.dim() == 3 else "mr,rn,rg->gmn"
    value = torch.einsum(equation, left, right, member)
    scale = torch.einsum(equation, left.abs(), right.abs(), member)
    return {"result": Expected(value, scale, dtype=given["mat_a"].dtype)}


def _forward(
    generator: torch.Generator, dtype: torch.dtype, *, rows: Sequence[int], k: int, n: int, behind: int = 0
) -> Arguments:
    """Return rows of several groups, a (k, n) matrix for each, and the end of each group."""
    total = sum(rows) + behind
    return {
        "mat_a": torch.randn(total, k, generator=generator).to(dtype),
        "mat_b": torch.randn(len(rows), k, n, generator=generator).to(dtype),
        "offs": torch.tensor(rows).cumsum(0).to(torch.int32),
    }


def _gradient(generator: torch.Generator, dtype: torch.dtype, *, rows: Sequence[int], m: int, n: int) -> Arguments:
    """Return the arguments of the gradient of the weights: groups of columns times groups of rows."""
    return {
        "mat_a": torch.randn(m, sum(rows), generator=generator).to(dtype),
        "mat_b": torch.randn(sum(rows), n, generator=generator).to(dtype),
        "offs": torch.tensor(rows).cumsum(0).to(torch.int32),
    }


def _same_as_alone(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check that NaN in one group's rows does not reach the results of other groups."""
    given = _forward(generator, dtype, rows=(5, 16, 3), k=33, n=17)
    expected = _row_by_row(given)["result"]
    given["mat_a"][5:21] = float("nan")

    result = functions.grouped_mm(*(tensor.to(device) for tensor in given.values()))

    for start, stop in ((0, 5), (21, 24)):
        assert expected.scale is not None
        part = Expected(expected.value[start:stop], expected.scale[start:stop], dtype=dtype)
        yield f"rows {start} to {stop - 1}, next to a group of NaN", result[start:stop], part


def _check(given: Arguments) -> None:
    """Raise ``UsageError`` for matrices or group ends that do not fit each other."""
    left = check_tensor("mat_a", given["mat_a"], dtypes=_STORED, contiguous=False)
    right = check_tensor("mat_b", given["mat_b"], dtypes=(left.dtype,), device=left.device, contiguous=False)
    offs = check_tensor("offs", given["offs"], dtypes=(torch.int32,), device=left.device)
    if left.dim() != 2:
        raise wrong("mat_a", "2 dimensions", tuple(left.shape))
    inner = right.shape[-2] if right.dim() in (2, 3) else -1
    if left.shape[1] != inner:
        raise wrong("mat_b", f"(groups, {left.shape[1]}, n) or ({left.shape[1]}, n)", tuple(right.shape))
    groups = right.shape[0] if right.dim() == 3 else offs.numel()
    if offs.dim() != 1 or offs.numel() != groups:
        raise wrong("offs", f"one end for each of {groups} groups", tuple(offs.shape))
    ends, rows = [0, *offs.tolist()], left.shape[0] if right.dim() == 3 else left.shape[1]
    if ends != sorted(ends) or ends[-1] > rows:
        raise wrong("offs", f"ends that do not decrease, up to {rows}", ends[1:])


def _with_offs(given: Arguments, ends: list[int]) -> Arguments:
    return {**given, "offs": torch.tensor(ends, dtype=torch.int32, device=given["mat_a"].device)}


#: Rows of the groups: odd sizes, an empty group, a single row.
_ROWS = (7, 0, 17, 1, 40)

SPECIFICATIONS = (
    KernelSpecification(
        name="grouped_mm",
        builder="GroupedMatmulBuilder",
        mode=Mode.TRAINING,
        dtypes=("float32", "float16", "bfloat16"),
        samples=(
            KernelSample("experts", functools.partial(_forward, rows=_ROWS, k=_LONGEST, n=33)),
            KernelSample("one-row", functools.partial(_forward, rows=(1,), k=1, n=1)),
            KernelSample("behind", functools.partial(_forward, rows=(3, 5), k=16, n=8, behind=4)),
            KernelSample("no-rows", functools.partial(_forward, rows=(0, 0), k=16, n=8)),
            KernelSample("gradient", functools.partial(_gradient, rows=_ROWS, m=9, n=33)),
        ),
        oracle=_row_by_row,
        budget=_BUDGET,
        reference=grouped_mm,
        validate=_check,
        refusals=(
            Refusal("decreasing", "offs", functools.partial(_with_offs, ends=[7, 3, 24, 25, 65])),
            Refusal("beyond", "offs", functools.partial(_with_offs, ends=[7, 7, 24, 25, 66])),
            Refusal("groups", "offs", functools.partial(_with_offs, ends=[7, 65])),
            Refusal("inner", "mat_b", lambda given: {**given, "mat_b": given["mat_b"][:, :-1]}),
            Refusal("dtypes", "mat_b", lambda given: {**given, "mat_b": given["mat_b"].double()}),
        ),
        properties=(Property("alone", _same_as_alone),),
    ),
)

"""Precision: width of accumulators, subnormal numbers, and all bits of float32 products."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import ACCUMULATE_WIDE, DENORMALS, DTYPE, MATMUL_FULL, MEMORY
from conformance.plan.case import Level, case


def dtype_of(name):
    return getattr(torch, name)


SIXTEEN_BITS = ("float16", "bfloat16")
#: A sum of ones that is accumulated in the dtype itself stops at 2048 (float16) or 256 (bfloat16).
ONES = 4096
SUMS = {
    "sum": lambda x: x.sum(),
    "sum_rows": lambda x: x.view(1, -1).sum(dim=1)[0],
    "sum_columns": lambda x: x.view(-1, 1).expand(-1, 5).contiguous().sum(dim=0)[2],
    "mean": lambda x: x.mean() * ONES,
    "matmul": lambda x: (x.view(1, -1) @ x.view(-1, 1))[0, 0],
    "matmul_square": lambda x: (x.expand(33, -1) @ x.expand(17, -1).t())[32, 16],
    "bmm": lambda x: torch.bmm(x.expand(3, 5, -1), x.expand(3, 7, -1).transpose(1, 2))[2, 4, 6],
    "linear": lambda x: torch.nn.functional.linear(x.view(1, -1), x.view(1, -1))[0, 0],
}


@case(
    "accelerator.dtype.accumulate", requires=[ACCUMULATE_WIDE], axes={"dtype": SIXTEEN_BITS, "function": sorted(SUMS)}
)
def test_accumulate(device, dtype, function):
    """Sums of 16-bit numbers are accumulated in a wider dtype, so 4096 ones add up to 4096."""
    ones = torch.ones(ONES, dtype=dtype_of(dtype), device=device)

    total = SUMS[function](ones)

    assert total.item() == ONES, f"{function} of {ONES} ones in {dtype} is {total.item()}, not {ONES}"


@case("accelerator.dtype.accumulate_gradient", requires=[ACCUMULATE_WIDE], axes={"dtype": SIXTEEN_BITS})
def test_accumulate_gradient(device, dtype):
    """Gradients summed over 4096 rows are accumulated in a wider dtype; those of a row count each column."""
    weight = torch.ones(1, 3, dtype=dtype_of(dtype), device=device, requires_grad=True)
    rows = torch.ones(ONES, 1, dtype=weight.dtype, device=device, requires_grad=True)

    (rows @ weight).sum().backward()  # the gradient of a sum repeats one number: both products have such a factor

    assert weight.grad.cpu().tolist() == [[float(ONES)] * 3], (
        f"the gradient over {ONES} rows is {weight.grad.cpu().tolist()}; every element must be {float(ONES)}"
    )
    off = rows.grad.cpu() != 3
    assert not bool(off.any()), f"the gradient of {int(off.sum())} of {ONES} rows is not 3, the sum of three ones"


@case("accelerator.dtype.denormals", requires=[DENORMALS, DTYPE], axes={"dtype": ["float32", "float16", "bfloat16"]})
def test_denormals(device, dtype):
    """Subnormal numbers take part in arithmetic and are not flushed to zero."""
    info = torch.finfo(dtype_of(dtype))
    smallest = info.smallest_normal
    source = torch.tensor([smallest, -smallest, smallest / 2, smallest / 4] * 9, dtype=torch.float64)
    tensor = source.to(dtype_of(dtype)).to(device)

    results = {"x / 2": (tensor / 2, source / 2), "x * 0.5": (tensor * 0.5, source / 2), "x + 0": (tensor + 0, source)}

    for name, (found, expected) in results.items():
        assert found.cpu().double().tolist() == expected.tolist(), (
            f"{name} flushes subnormals: {found[:4].cpu().tolist()}"
        )


@case("accelerator.dtype.matmul_full", requires=[MATMUL_FULL])
def test_matmul_full(device):
    """Float32 matrix products use all 24 bits of their inputs by default."""
    # 1 + 2^-20 loses its last bits in a format with 10 (TF32) or 7 (bfloat16) mantissa bits.
    # A product with the identity shows the loss.
    source = torch.full((256, 256), 1.0 + 2.0**-20) + torch.arange(256) * 2.0**-22

    result = source.to(device) @ torch.eye(256).to(device)

    wrong = int((result.cpu() != source).sum())
    assert wrong == 0, f"{wrong} of 65536 elements lost bits in a product with the identity"


@case("accelerator.dtype.large_product", requires=[MEMORY], level=Level.CORE)
def test_large_product(device):
    """A matrix product with four million outputs is right in every output."""
    # Launch grids have limits, and a kernel that exceeds one may leave the other outputs unwritten.
    # Small integers make the result exact.
    rows, columns = 2049, 2051
    left = (torch.arange(rows * 7) % 11 - 5).to(torch.float32).view(rows, 7)
    right = (torch.arange(7 * columns) % 13 - 6).to(torch.float32).view(7, columns)

    result = (left.to(device) @ right.to(device)).cpu()

    wrong = int((result != left @ right).sum())
    assert wrong == 0, f"{wrong} of {rows * columns} outputs are wrong, the last one is {result[-1, -1].item()}"

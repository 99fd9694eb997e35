"""A layer of experts that computes in two grouped products."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.case import Case, cases
from conformance.numerics.nearness import Near, near

from .grouped import ends_of, grouped_cell

#: Rows of 16 bytes and their multiples, which kernels ask for.
EXPERTS, WIDTH, HIDDEN = 5, 8, 24
DTYPES = ("float32", "bfloat16")
#: How many tokens each expert has. A tile of a kernel is usually 16 rows or a multiple.
ROWS = {
    "uneven": (17, 1, 5, 16, 3),
    "empty-first": (0, 0, 7, 2, 4),
    "empty-last": (3, 9, 0, 0, 0),
    "one-has-all": (0, 0, 23, 0, 0),
    "nobody-comes": (0, 0, 0, 0, 0),
}


def layers():
    return [
        Case(
            id=f"moe.grouped[{dtype}-{rows}]",
            area="moe",
            axes=(("dtype", dtype), ("rows", rows)),
            requires=(grouped_cell(dtype), DTYPE.on("int32"), DTYPE.on("int64")),
        )
        for dtype in DTYPES
        for rows in ROWS
    ]


def numbers(rows, dtype):
    """Tokens, the expert of each in no order, and the weights of both products, rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(6)
    chosen = torch.arange(EXPERTS).repeat_interleave(torch.tensor(rows))
    chosen = chosen[torch.randperm(len(chosen), generator=generator)]
    shapes = (len(chosen), WIDTH), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    scales = 1.0, WIDTH**-0.5, HIDDEN**-0.5
    made = [
        (scale * torch.randn(shape, generator=generator)).to(dtype) for shape, scale in zip(shapes, scales, strict=True)
    ]
    return chosen, made


def in_groups(x, chosen, into, out):
    """Sorted by expert, up, down, and in the old order again."""
    order = torch.argsort(chosen, stable=True)
    ends = ends_of(chosen, EXPERTS)
    hidden = torch.tanh(torch.nn.functional.grouped_mm(x[order], into, offs=ends))
    made = torch.nn.functional.grouped_mm(hidden, out, offs=ends)
    return torch.empty_like(made).index_copy(0, order, made)


def by_loop(x, chosen, into, out):
    """Every expert with every token, and only its own are taken."""
    made = torch.tanh(x @ into) @ out
    return torch.where((chosen == torch.arange(EXPERTS).view(-1, 1)).unsqueeze(-1), made, 0.0).sum(0)


@cases(layers)
def test_grouped(case, check, device):
    """Outputs, the tokens' gradients and every expert's are those of a loop over experts; idle ones have zeros."""
    axes = dict(case.axes)
    dtype = getattr(torch, axes["dtype"])
    chosen, given = numbers(ROWS[axes["rows"]], dtype)
    exact = [tensor.double().requires_grad_() for tensor in given]
    expected = by_loop(exact[0], chosen, *exact[1:])
    expected.square().sum().backward()
    mine = [tensor.to(device).requires_grad_() for tensor in given]

    output = in_groups(mine[0], chosen.to(device), *mine[1:])
    output.square().sum().backward()

    near(check, "the output", output, expected.detach(), Near.FORWARD)
    for name, found, wanted in zip(("tokens", "first products", "second products"), mine, exact, strict=True):
        near(check, f"the gradient of the {name}", found.grad, wanted.grad, Near.GRADIENTS)
    idle = [expert for expert, count in enumerate(ROWS[axes["rows"]]) if not count]
    for weights in mine[1:]:
        found = weights.grad[idle].cpu()
        check.equal(found, torch.zeros_like(found), f"the gradients of experts {idle}, who have no token")

"""Grouped product cases: an expert layer of two grouped products agrees with a loop over experts."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import Case, cases
from conformance.suites.shared_bodies import assert_computes

from .routing import ends_of, grouped_cell

#: Kernels of grouped products need rows whose size is a multiple of 16 bytes.
EXPERTS, WIDTH, HIDDEN = 5, 8, 24
DTYPES = ("float32", "bfloat16")
#: Numbers of tokens of each expert. A tile of a kernel usually has 16 rows or a multiple of 16.
ROWS = {
    "uneven": (17, 1, 5, 16, 3),
    "empty-first": (0, 0, 7, 2, 4),
    "empty-last": (3, 9, 0, 0, 0),
    "one-has-all": (0, 0, 23, 0, 0),
    "nobody-comes": (0, 0, 0, 0, 0),
}


def layers():
    """Return a case for each dtype and each distribution of tokens."""
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
    """Return the experts of the tokens in random order, and tokens and both products' weights in ``dtype``."""
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
    """Return the layer's output by two grouped products: sort by expert, multiply up and down, unsort."""
    order = torch.argsort(chosen, stable=True)
    ends = ends_of(chosen, EXPERTS)
    hidden = torch.tanh(torch.nn.functional.grouped_mm(x[order], into, offs=ends))
    made = torch.nn.functional.grouped_mm(hidden, out, offs=ends)
    return torch.empty_like(made).index_copy(0, order, made)


def by_loop(x, chosen, into, out):
    """Return the layer's output: every expert computes every token, and only its own tokens are kept."""
    made = torch.tanh(x @ into) @ out
    return torch.where((chosen == torch.arange(EXPERTS).view(-1, 1)).unsqueeze(-1), made, 0.0).sum(0)


@cases(layers)
def test_grouped(case, check, device):
    """Outputs and gradients agree with a loop over experts, and experts without tokens have zero gradients."""
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
    assert_computes(device)  # also after a launch without tokens
    idle = [expert for expert, count in enumerate(ROWS[axes["rows"]]) if not count]
    for weights in mine[1:]:
        found = weights.grad[idle].cpu()
        check.equal(found, torch.zeros_like(found), f"the gradients of experts {idle}, which have no token")

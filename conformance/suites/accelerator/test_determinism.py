"""Determinism: in torch's deterministic mode the same inputs give the same bits, also in scattered sums."""

from __future__ import annotations

import torch
from torch.nn import functional

from conformance.accelerators.capabilities import DETERMINISTIC, Mode
from conformance.plan.case import case
from conformance.suites.operator_claims import skip_if_denied
from conformance.suites.shared_bodies import deterministic

from .patterns import bytes_of

ROWS, COLUMNS, BUCKETS = 513, 65, 7


def buckets(device):
    """Return an int64 bucket index for each of ROWS rows, on ``device``.

    Many rows share a bucket, so a different order of additions changes the last bits of its sum.
    """
    return (torch.arange(ROWS) * 31 % BUCKETS).to(device)


#: Functions of a float32 matrix. The value or the gradient of each is a sum over many elements.
FUNCTIONS = {
    "matmul": lambda x: x @ x.t(),
    "linear": lambda x: functional.linear(x, x[:BUCKETS]),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(dim=0),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "layer_norm": lambda x: functional.layer_norm(x, (COLUMNS,)),
    # A kernel of width 3 over the rows, with as many output channels as there are buckets.
    "conv1d": lambda x: functional.conv1d(x.t()[None], x[: 3 * BUCKETS].view(BUCKETS, 3, COLUMNS).mT),
    "index_add": lambda x: torch.zeros(BUCKETS, COLUMNS, device=x.device).index_add(0, buckets(x.device), x),
    "scatter_add": lambda x: torch.zeros(BUCKETS, device=x.device).scatter_add(0, buckets(x.device), x[:, 0]),
    "embedding": lambda x: functional.embedding(buckets(x.device), x[:BUCKETS]),
    "gather": lambda x: x.gather(0, buckets(x.device).view(-1, 1).expand(-1, COLUMNS)),
}


def value_and_gradient(function, source):
    """Return the function's value at ``source`` and the gradient of its weighted sum, both on the host."""
    leaf = source.clone().requires_grad_()
    value = function(leaf)
    # Different weights, because the plain sum of a softmax or a layer norm has a gradient of zero.
    (value * torch.linspace(0.5, 1.5, value.numel()).view(value.shape).to(value.device)).sum().backward()
    return {"value": value.detach().cpu(), "gradient": leaf.grad.cpu()}


#: The operators of functions that have another name than theirs.
_OPERATORS = {
    "linear": "nn.functional.linear",
    "layer_norm": "nn.functional.layer_norm",
    "conv1d": "nn.functional.conv1d",
    "embedding": "nn.functional.embedding",
}


@case("accelerator.determinism.repeats", requires=[DETERMINISTIC], axes={"function": sorted(FUNCTIONS)})
def test_repeats(declaration, device, function):
    """In deterministic mode a value and its gradient have the same bits four times in a row."""
    skip_if_denied(declaration, _OPERATORS.get(function, function), mode=Mode.TRAINING)
    source = torch.randn(ROWS, COLUMNS, device=device)

    with deterministic():
        runs = []
        for _ in range(4):
            runs.append(value_and_gradient(FUNCTIONS[function], source))
            # Other work between the runs makes an accidental repetition less likely.
            torch.randn(257, 257, device=device).sin_()

    for name, first in runs[0].items():
        assert bool(first.isfinite().all()), f"the {name} of {function} is not finite"
        assert bool(first.any()), f"the {name} of {function} is 0 everywhere"
        for count, run in enumerate(runs[1:], start=2):
            wrong = int((bytes_of(run[name]).view(-1, 4) != bytes_of(first).view(-1, 4)).any(dim=1).sum())
            assert wrong == 0, f"run {count}: {wrong} of {first.numel()} elements of the {name} differ from run 1"

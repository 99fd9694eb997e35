"""Determinism: the same inputs give the same bits in torch's deterministic mode, also in scattered sums."""

from __future__ import annotations

import torch
from torch.nn import functional

from conformance.accelerators.capabilities import DETERMINISTIC
from conformance.case import case
from conformance.suites.workloads.determinism import deterministic

from .patterns import bytes_of

ROWS, COLUMNS, PLACES = 513, 65, 7


def places(device):
    """Many rows share a place, so that the order in which they are added shows in the last bits."""
    return (torch.arange(ROWS) * 31 % PLACES).to(device)


#: Functions of a float32 matrix. Each one's sum or gradient is over many elements.
FUNCTIONS = {
    "matmul": lambda x: x @ x.t(),
    "linear": lambda x: functional.linear(x, x[:PLACES]),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(dim=0),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "layer_norm": lambda x: functional.layer_norm(x, (COLUMNS,)),
    # Over the rows: three taps, as many output channels as there are places.
    "conv1d": lambda x: functional.conv1d(x.t()[None], x[: 3 * PLACES].view(PLACES, 3, COLUMNS).mT),
    "index_add": lambda x: torch.zeros(PLACES, COLUMNS, device=x.device).index_add(0, places(x.device), x),
    "scatter_add": lambda x: torch.zeros(PLACES, device=x.device).scatter_add(0, places(x.device), x[:, 0]),
    "embedding": lambda x: functional.embedding(places(x.device), x[:PLACES]),
    "gather": lambda x: x.gather(0, places(x.device).view(-1, 1).expand(-1, COLUMNS)),
}


def value_and_gradient(function, source):
    leaf = source.clone().requires_grad_()
    value = function(leaf)
    (value * torch.linspace(0.5, 1.5, value.numel(), device=value.device).view_as(value)).sum().backward()
    return {"value": value.detach().cpu(), "gradient": leaf.grad.cpu()}


@case("accelerator.determinism.repeats", requires=[DETERMINISTIC], axes={"function": sorted(FUNCTIONS)})
def test_repeats(device, function, monkeypatch):
    """Value and gradient have the same bits four times in a row, with other work in between."""
    source = torch.randn(ROWS, COLUMNS, device=device)

    with deterministic(monkeypatch):
        runs = []
        for _ in range(4):
            runs.append(value_and_gradient(FUNCTIONS[function], source))
            torch.randn(257, 257, device=device).sin_()

    for name, first in runs[0].items():
        assert bool(first.isfinite().all()), f"the {name} of {function} is not finite"
        for count, run in enumerate(runs[1:], start=2):
            wrong = int((bytes_of(run[name]).view(-1, 4) != bytes_of(first).view(-1, 4)).any(dim=1).sum())
            assert wrong == 0, f"run {count}: {wrong} of {first.numel()} elements of the {name} have other bits"

"""File swap cases: states and parameters that are kept in files between uses keep their bits."""

from __future__ import annotations

import torch

from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .swapping import FILES, Swap, numbers

WIDTH = 64


def trained(device, steps, between):
    """Return parameters after ``steps`` steps of Adam; ``between`` is called with the moments after each step."""
    weight = numbers(1, WIDTH, WIDTH).to(device).requires_grad_()
    moments = {name: torch.zeros(WIDTH, WIDTH, device=device) for name in ("mean", "square")}
    for step in range(steps):
        loss = (numbers(2 + step, 16, WIDTH).to(device) @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        moments["mean"].mul_(0.875).add_(gradient, alpha=0.125)
        moments["square"].mul_(0.984375).addcmul_(gradient, gradient, value=0.015625)
        with torch.no_grad():
            weight.sub_(0.05 * moments["mean"] / (moments["square"].sqrt() + 1e-6))
        between(moments)
    return weight.detach().cpu()


@case("v1.nvme.optimizer_states", requires=[FILES], adaptive=True)
def test_optimizer_states(accelerator, device, check, tmp_path):
    """Training with moments that are swapped to files between steps gives the same parameters bit for bit."""
    swap = Swap(accelerator, tmp_path)

    def away_and_back(states):
        swap.out(states)
        swap.start_in(states)
        swap.finish_in()

    swapped, kept = trained(device, 3, away_and_back), trained(device, 3, lambda states: None)

    check.agree(swapped, kept, "parameters after 3 steps")
    check.that(bool((kept != numbers(1, WIDTH, WIDTH)).all() and kept.any()), "training left the parameters unchanged")


@case("v1.nvme.parameters", requires=[FILES], adaptive=True)
def test_parameters(accelerator, device, check, tmp_path):
    """Parameters read from files into new memory give the same layer output."""
    swap, layer, inputs = Swap(accelerator, tmp_path), torch.nn.Linear(WIDTH, WIDTH, bias=False), numbers(3, 8, WIDTH)
    layer, inputs = layer.to(device), inputs.to(device)
    exact = numbers(3, 8, WIDTH).double() @ layer.weight.detach().cpu().double().T
    before = layer(inputs).detach().cpu()
    near(check, "the layer's output", before, exact, Near.FORWARD)
    check.that(bool(before.any()), "the layer's output is 0")

    swap.out({"weight": layer.weight.data})
    layer.weight.data = torch.empty(0, device=device)
    layer.weight.data = torch.empty(WIDTH, WIDTH, device=device)
    swap.start_in({"weight": layer.weight.data})
    swap.finish_in()

    check.agree(layer(inputs).detach().cpu(), before, "the layer's output after its weight was read back")


@case("v1.nvme.pipelined", requires=[FILES], adaptive=True)
def test_pipelined(accelerator, device, check, tmp_path):
    """With the next group being read while one is in use, every group arrives in its own buffer."""
    reading, writing = Swap(accelerator, tmp_path), Swap(accelerator, tmp_path)
    groups = [numbers(10 + index, 4, 2048) for index in range(5)]
    for index, group in enumerate(groups):
        writing.out({str(index): group.to(device, copy=True)})
    buffers = [torch.zeros(4, 2048, device=device) for _ in range(2)]

    reading.start_in({"0": buffers[0]})
    for index in range(5):
        arrived = reading.finish_in()
        if index + 1 < 5:
            reading.start_in({str(index + 1): buffers[(index + 1) % 2]})
        check.equal(arrived, 1, f"operations completed for group {index}")
        writing.out({f"{index}.new": buffers[index % 2].mul(2.0)})

    for index, group in enumerate(groups):
        back = torch.zeros(4, 2048, device=device)
        reading.start_in({f"{index}.new": back})
        reading.finish_in()
        check.equal(back.cpu(), group * 2, f"group {index} after it was doubled in its buffer and written")

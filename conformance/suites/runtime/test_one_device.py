"""Cases of training engines on a single device: recomputed activations."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import RNG_STATE
from conformance.plan.case import case


class Dropping(nn.Module):
    """Model of two blocks with dropout."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.4)) for _ in "ab"])

    def forward(self, x, wrap):
        for block in self.blocks:
            x = wrap(block, x)
        return x


@case("runtime.recomputation", requires=[RNG_STATE], axes={"reentrant": ("no", "yes")})
def test_recomputation(accelerator, check, device, reentrant):
    """Recomputed activations drop the same elements, so outputs and gradients keep their bits."""
    from torch.utils.checkpoint import checkpoint

    model, x = Dropping().to(device), torch.randn(8, 16, device=device)

    def plain(block, value):
        return block(value)

    def recomputing(block, value):
        return checkpoint(block, value, use_reentrant=reentrant == "yes")

    results = []
    for wrap in (plain, recomputing):
        accelerator.manual_seed(11)
        inputs = x.clone().requires_grad_()
        model.zero_grad()
        output = model(inputs, wrap)
        torch.rand(5, device=device)  # advances the generator, so recomputation has to restore its state
        output.square().sum().backward()
        results.append((output, inputs.grad, *(parameter.grad.clone() for parameter in model.parameters())))

    for number, (kept, recomputed) in enumerate(zip(*results, strict=True)):
        check.agree(recomputed.detach().cpu(), kept.detach().cpu(), f"output or gradient {number}")
    check.that(bool((results[0][0] == 0).any()), "dropout dropped no element of the output")

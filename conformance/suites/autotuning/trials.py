"""Trials of a tuner: one forward and backward pass whose memory grows with the batch, and whose results are exact."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from conformance.numerics.budgets import load_table
from conformance.suites.accelerator.test_memory import GRANULARITY, settle
from conformance.suites.shared_bodies import runs_out

LIMITS = load_table(__file__, "limits.toml")
#: Elements of a sample: 1 MiB in float32.
FEATURES = 1 << 18


def samples(batch: int, features: int = FEATURES) -> torch.Tensor:
    """Return integers from -1 to 2 on the host, (batch, features). Neighbouring samples differ."""
    row = torch.arange(features + batch, dtype=torch.float32) % 4 - 1
    return row.unfold(0, features, 1)[:batch]


def factors(features: int = FEATURES) -> torch.Tensor:
    """Return the trained factors on the host: integers from -1 to 1, of which a third is 0."""
    return torch.arange(features, dtype=torch.float32) % 3 - 1


def expected_losses(batch: int, features: int = FEATURES) -> torch.Tensor:
    """Return the sum of squared products of each sample, exact in float32: at most 4 × 2^20."""
    return (samples(batch, features).long() * factors(features).long()).square().sum(1).float()


def expected_gradient(batch: int, features: int = FEATURES) -> torch.Tensor:
    """Return twice the factors, times the sum of the squared samples."""
    return (2 * factors(features).long() * samples(batch, features).long().square().sum(0)).float()


@dataclass(frozen=True)
class Trial:
    """Result of one trial on the host, and the bytes by which allocated memory rose at its peak."""

    losses: torch.Tensor
    gradient: torch.Tensor
    peak: int


def run_trial(accelerator, device, batch, features=FEATURES, dtype=torch.float32):
    """Train one batch on the device and return the Trial; torch.OutOfMemoryError reaches the caller."""
    settle(accelerator)
    index = device.index or 0
    accelerator.reset_peak_memory_stats(index)
    before = accelerator.memory_allocated(index)
    inputs = samples(batch, features).to(device=device, dtype=dtype)
    trained = factors(features).to(device=device, dtype=dtype).requires_grad_()

    losses = (inputs * trained).square().sum(1)
    losses.sum().backward()
    accelerator.synchronize(index)

    peak = accelerator.max_memory_allocated(index) - before
    return Trial(losses.detach().cpu().float(), trained.grad.cpu().float(), peak)


def check_results(check, trial, batch, features=FEATURES):
    """Check that a trial in float32 gave exactly the losses and the gradient that integers give on the host."""
    check.equal(trial.losses, expected_losses(batch, features), f"losses of a batch of {batch}")
    check.equal(trial.gradient, expected_gradient(batch, features), f"gradient of a batch of {batch}")


def largest(fits, low, high, step=1):
    """Return the largest multiple of ``step`` from ``low`` to ``high`` for which ``fits`` holds; ``low`` does."""
    while high - low > step:
        middle = low + (high - low) // (2 * step) * step
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_tensor(accelerator, device):
    """Return the bytes of the largest tensor that the device has memory for, found by trying, in steps of 2 MiB."""
    settle(accelerator)

    def fits(size):
        out = runs_out(lambda: torch.empty(size, dtype=torch.uint8, device=device))
        accelerator.empty_cache()
        return not out

    above = (accelerator.total_memory() // GRANULARITY + 2) * GRANULARITY
    assert not fits(above), f"a tensor of {above} bytes fits, and total_memory() is {accelerator.total_memory()}"
    return largest(fits, 0, above, GRANULARITY)


def fill_up_to(accelerator, device, room):
    """Leave about ``room`` bytes of the device's memory free; return the tensor that takes the others."""
    taken = max(0, largest_tensor(accelerator, device) - room)
    return torch.empty(taken, dtype=torch.uint8, device=device)

"""Statistics of random numbers: independence of parts and calls, and moments against the host's."""

from __future__ import annotations

import torch

#: Numbers of one draw.
DRAWN = 1 << 14
#: Standard deviations by which a statistic of independent draws may differ; once in 500 million draws it is more.
SIGMAS = 6.0


def compare_draws(accelerator, device, draw, check) -> torch.Tensor:
    """Check that two calls, two seeds, halves and rows are independent, and moments; return the first call's numbers.

    ``draw(n, device)`` returns ``n`` numbers. The host's ``draw`` gives the moments.
    """
    accelerator.manual_seed(5)
    first, second = draw(DRAWN, device).cpu().double(), draw(DRAWN, device).cpu().double()
    accelerator.manual_seed(6)
    other = draw(DRAWN, device).cpu().double()
    exact = draw(DRAWN * 8, torch.device("cpu")).double()

    half, rows = DRAWN // 2, first.reshape(128, -1)
    pairs = {
        "two calls": (first, second),
        "two seeds": (first, other),
        "the halves of a call": (first[:half], first[half:]),
        "neighbours": (first[:-1], first[1:]),
        "neighbouring rows": (rows[:-1].flatten(), rows[1:].flatten()),
    }
    for name, (left, right) in pairs.items():
        correlation = float(torch.corrcoef(torch.stack([left, right]))[0, 1]) * len(left) ** 0.5
        check.that(abs(correlation) <= SIGMAS, f"{name} are correlated: {correlation:.1f} standard deviations")
    for name, part in {"call": first, "first half": first[:half], "last half": first[half:]}.items():
        distance = float((part.mean() - exact.mean()).abs() / (exact.std() * (1 / len(part) + 1 / len(exact)) ** 0.5))
        check.that(distance <= SIGMAS, f"the mean of the {name} is off by {distance:.1f} standard deviations")
        squares = (part - exact.mean()) ** 2, (exact - exact.mean()) ** 2
        error = float(squares[1].std()) * (1 / len(part) + 1 / len(exact)) ** 0.5
        distance = abs(float(squares[0].mean() - squares[1].mean())) / error
        check.that(distance <= SIGMAS, f"the variance of the {name} is off by {distance:.1f} standard deviations")
    return first

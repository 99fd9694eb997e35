"""What ranks put into collectives: numbers that every rank can compute for every other."""

from __future__ import annotations

import torch

from conformance.case import Case, seed_of

#: One element, and one more than a few full buffers: remainders are where slices go wrong.
SIZES = {"1": 1, "256k3": (1 << 18) + 3}


def payload(case: Case, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The input of one rank, on the host. Integers are small, so that no sum of them overflows."""
    generator = torch.Generator().manual_seed(seed_of(f"{case.id}/{rank}"))
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-1000, 1000, (size,), generator=generator).to(dtype)


def payloads(case: Case, world_size: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The inputs of all ranks, a row each."""
    return torch.stack([payload(case, rank, size, dtype) for rank in range(world_size)])

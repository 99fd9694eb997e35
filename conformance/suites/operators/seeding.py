"""Seeds for the generators of the host and of one device.

``torch.manual_seed`` formats a stack trace for every device type that is not initialised. Under a test runner that
takes longer than most cells, so it is not used here.
"""

from __future__ import annotations

import random

import numpy
import torch


def reseed(seed: int, device: torch.device) -> None:
    """Seed the host's generator and those of the device's type."""
    torch.default_generator.manual_seed(seed)
    if device.type != torch.device("cpu").type:
        torch.get_device_module(device).manual_seed_all(seed)


def seed_generation(seed: int | None = None) -> None:
    """Seed the generators that the database uses; it calls this before each sample, which is made on the host."""
    seed = 1234 if seed is None else seed  # the default of PyTorch's own set_rng_seed
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)

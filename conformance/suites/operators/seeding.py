"""Seeding the host and one device, and nothing else.

``torch.manual_seed`` formats a stack trace for every device type that is not initialised, which under a test runner
takes longer than most cells.
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
    """What the database calls before each sample: samples are made on the host."""
    seed = 1234 if seed is None else seed
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)

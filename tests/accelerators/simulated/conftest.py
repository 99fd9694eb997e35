"""The simulated accelerator in this process. PyTorch has room for one; other device profiles need other processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def sim() -> Any:
    """``torch.sim``, with two devices."""
    import torch

    import conformance.accelerators.simulated.torch_sim  # noqa: F401

    return torch.sim


@pytest.fixture(autouse=True)
def whole(sim: Any) -> Iterator[None]:
    """Every test starts with nothing pending and leaves no fault behind."""
    from tests.defects import faults

    sim.synchronize(0)
    sim.synchronize(1)
    yield
    faults.disarm()

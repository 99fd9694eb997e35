"""What all tests of a process share."""

from __future__ import annotations

import importlib

import pytest

#: Folders with tests that use the simulated device in their own process.
ON_THE_DEVICE = {"simulated", "suites"}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register the simulated device before any test runs a backward pass: autograd counts devices once a process."""
    if any(item.path.parent.name in ON_THE_DEVICE for item in session.items):
        importlib.import_module("conformance.accelerators.simulated.torch_sim")

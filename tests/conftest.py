"""What all tests of a process share."""

from __future__ import annotations

import importlib

import pytest

#: Folders with tests that use the simulated device in their own process.
ON_THE_DEVICE = {"simulated", "suites"}
#: Files that take longest, in folders of ``tests``. They run first: at the end, one worker would wait for another.
LONGEST = (
    "faults/test_faults.py", "acceptance/test_mistakes.py", "exact/test_exact_device.py",
    "acceptance/test_interrupts.py", "acceptance/test_truth.py", "acceptance/test_lies.py", "strangers/test_heron.py",
    "defects/test_defects.py", "do_nothing/test_do_nothing.py", "acceptance/test_chaos.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first, after pytest-randomly has drawn an order."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(order)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register the simulated device before any test runs a backward pass: autograd counts devices once a process."""
    if any(item.path.parent.name in ON_THE_DEVICE for item in session.items):
        importlib.import_module("conformance.accelerators.simulated.torch_sim")

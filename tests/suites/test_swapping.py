"""Swaps to files by this project's kernel need the address of a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.judging.finding import EnvironmentLacks
from conformance.suites.v1.swapping import Swap, numbers


@pytest.fixture
def swap(tmp_path: Path) -> Swap:
    return Swap(resolve("cpu").load(), tmp_path)


def test_a_tensor_without_an_address_is_no_fault_of_the_device(swap: Swap) -> None:
    with pytest.raises(EnvironmentLacks, match="needs the address of a tensor, and those of meta have none"):
        swap.out({"weight": torch.empty(4096, device="meta")})


def test_a_tensor_with_an_address_comes_back(swap: Swap) -> None:
    tensors = {"weight": numbers(1, 64, 64)}

    swap.out(tensors)
    assert tensors["weight"].isnan().all()
    swap.start_in(tensors)
    swap.finish_in()

    assert torch.equal(tensors["weight"], numbers(1, 64, 64))

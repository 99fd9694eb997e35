"""Copies to a device keep lazy bits where the device can have them, and parts of memory stay parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from conformance.numerics import transfer

HOST = torch.device("cpu")


class WithoutComplexTensors(TorchFunctionMode):
    """Mode in which no complex tensor can be made."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kwargs or {}).get("dtype") is torch.complex64:
            raise TypeError("no complex tensors here")
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def forget():
    transfer.has_lazy_negation.cache_clear()
    yield
    transfer.has_lazy_negation.cache_clear()


def test_a_device_with_complex_tensors_gets_the_lazy_bit():
    lazy = torch._neg_view(torch.arange(6.0))

    copy = transfer.copied(lazy, HOST)

    assert copy.is_neg()
    assert torch.equal(copy, -torch.arange(6.0))


def test_a_device_without_complex_tensors_gets_the_values_in_memory():
    """No public function makes such a tensor there. tinygrad's gradients of it were called wrong."""
    lazy = torch._neg_view(torch.arange(6.0))

    with WithoutComplexTensors():
        copy = transfer.copied(lazy, HOST)

    assert not copy.is_neg()
    assert torch.equal(copy, -torch.arange(6.0))


def test_a_copy_of_a_part_of_memory_is_a_view_as_the_users_tensor_is() -> None:
    copy = transfer.copied(torch.arange(6.0)[2:5], HOST)

    assert copy._is_view()
    assert copy._base is not None
    assert copy.storage_offset() == 2
    assert copy.tolist() == [2, 3, 4]


def test_the_first_row_of_a_table_stays_a_part_of_it():
    table = torch.arange(6.0).view(2, 3)

    copy = transfer.copied(table[0], HOST)

    assert copy.untyped_storage().nbytes() == table.untyped_storage().nbytes()
    assert torch.equal(copy.as_strided((2, 3), (3, 1)), table)


def test_an_empty_part_of_a_table_is_copied_alone():
    empty = torch.arange(6.0).view(2, 3)[:0]

    assert transfer.copied(empty, HOST).untyped_storage().nbytes() == 0

"""Which samples are drawn does not depend on the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.suites.operators.calls import sampling
from conformance.suites.operators.calls.database import find
from conformance.suites.operators.calls.work import work

#: Operators for which PyTorch's database adds samples on CUDA, where torch says that there is one.
LOOKING_FOR_CUDA = ("to", "new_empty", "new_empty_strided", "new_full", "new_ones")


@pytest.mark.parametrize("name", LOOKING_FOR_CUDA)
def test_samples_are_the_same_where_a_package_answers_for_cuda(name, monkeypatch):
    expected = arguments(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    found = arguments(name)

    assert len(expected) > 1
    assert found == expected


def arguments(name: str) -> list[tuple[int, object]]:
    """What distinguishes an operator's samples, but for their numbers."""
    everything = replace(work().inference, samples=1000)
    samples = sampling.pick(find(name), torch.float32, requires_grad=False, extent=everything)
    return [(len(sample.args), sample.kwargs) for sample in samples]


def test_dtypes_of_a_device_are_those_of_the_table_by_device():
    info = find("add")
    if "dtypesIf" not in vars(info):
        pytest.skip("this torch has a field for each device")

    assert info.dtypesIfCUDA == info.dtypesIf["cuda"]
    assert torch.float16 in info.dtypesIfCUDA


def test_arguments_of_an_operator_are_kept_as_they_were_given():
    info = find("add")

    given = info._original_opinfo_args
    assert given["name"] == "add"
    assert given.get("dtypesIf") is not vars(info).get("dtypesIf", {})
    assert given["decorators"] is not info.decorators

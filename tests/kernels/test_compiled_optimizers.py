"""The compiled steps: every 16-bit number survives, threads change nothing, and wrong pairs are an error."""

from __future__ import annotations

import pytest
import torch

from conformance.kernels.optimizers import compiled
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.specifications import of_builder, specification

from .test_specifications import _accepted

SETTINGS = AdamSettings(0.1, 0.875, 0.984375, 1e-3, 0.25, 3, True, True)
HOST = ("adam_update", "adam_rollback", "adagrad_update", "lion_update")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_is_kept_by_a_step_of_rate_0(dtype: torch.dtype) -> None:
    everything = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    after, still = everything.clone(), torch.zeros_like(everything)

    compiled.adagrad(after, still, still.clone(), 0.0, 1.0, 0.0)

    same = (after.view(torch.int16) == everything.view(torch.int16)) | (after.isnan() & everything.isnan())
    assert same.all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 7, 9, 100_001], ids=str)
def test_results_are_rounded_to_nearest_even(dtype: torch.dtype, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    wide = torch.randn(count, generator=generator) * 10.0 ** torch.randint(-9, 6, (count,), generator=generator)
    parameter, zero = torch.zeros(count, dtype=dtype), torch.zeros(count)

    # kept * 0 - size * (mean / (0 + 1)), with size -1 and a mean that is not decayed: the parameter becomes the mean.
    becomes_mean = AdamSettings(-1.0, 1.0, 1.0, 1.0, 0.0, 1, False, True)
    compiled.adam(parameter, zero.to(dtype), wide, zero, becomes_mean)

    assert torch.equal(parameter, wide.to(dtype))


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
    ],
    ids=str,
)
def test_an_element_s_place_changes_no_bit(dtype: torch.dtype, state: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(9)
    odd = torch.tensor([0.0, -0.0, 1e-40, float("inf"), float("-inf"), float("nan")])
    numbers = [torch.randn(80, generator=generator).index_copy_(0, torch.arange(3 + 7 * i, 9 + 7 * i), odd)
               for i in range(4)]  # fmt: skip
    numbers[3] = numbers[3].abs()
    together = [one.to(kind) for one, kind in zip(numbers, (dtype, dtype, state, state), strict=True)]
    alone = [one.clone() for one in together]

    compiled.adam(*together, SETTINGS)
    for i in range(80):
        compiled.adam(*(one[i : i + 1] for one in alone), SETTINGS)

    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(one.signbit()[~one.isnan()], other.signbit()[~one.isnan()])
    if dtype is torch.bfloat16:
        assert torch.equal(together[0].view(torch.int16), alone[0].view(torch.int16)), "of bfloat16 there is one NaN"


def test_threads_change_no_bit() -> None:
    size, threads = 200_003, torch.get_num_threads()
    outcomes = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            generator = torch.Generator().manual_seed(5)
            tensors = [torch.rand(size, generator=generator) for _ in range(4)]
            compiled.adam(*tensors, SETTINGS)
            outcomes.append(tensors)
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(one, two) for one, two in zip(*outcomes, strict=True))


def test_a_pair_of_dtypes_that_nobody_stores_is_an_error() -> None:
    wide, narrow = torch.zeros(3), torch.zeros(3, dtype=torch.float16)

    with pytest.raises(TypeError, match=r"float32 parameters and torch\.float16 state"):
        compiled.lion(wide, wide, narrow, 0.1, 0.9, 0.99, 0.0)


@pytest.mark.parametrize("name", ["multi_tensor_adam", "multi_tensor_lion"])
def test_what_is_compiled_meets_the_specification_of_lists(name: str) -> None:
    kernel = specification(name)
    function = next(one for one in kernel.native if "cpu" in one.devices).load()

    wrong = [
        (sample.name, dtype)
        for dtype in kernel.dtypes
        for sample in kernel.samples
        if (not sample.dtypes or dtype in sample.dtypes) and not _accepted(kernel, sample, dtype, function)
    ]

    assert wrong == []


def test_the_host_kernels_have_a_native_implementation() -> None:
    there = {one.name: one.native for builder in ("CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder")
             for one in of_builder(builder)}  # fmt: skip

    assert set(there) == set(HOST)
    assert all(there.values())

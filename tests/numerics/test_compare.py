"""The three-party comparison: what is right, what is wrong, and what the message says."""

from __future__ import annotations

import pytest
import torch

from conformance.numerics import layout
from conformance.numerics.budgets import OpClass, budget_of, unit_roundoff
from conformance.numerics.compare import TOLERANCES, Exact, compare, same_bits, zero_signs
from conformance.numerics.transfer import copied, widened

CPU = torch.device("cpu")


def exactly(value: torch.Tensor) -> Exact:
    return Exact(value, lambda: None)


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def judge(actual, host, exact, op_class=OpClass.ELEMENTWISE, n=1.0):
    return compare(actual, host, lambda: exactly(exact), op_class, n)


def test_what_is_right_because_it_is_near_the_host_has_no_error_beyond_the_budget():
    host = torch.tensor([1.0, 2.0])
    near = host + torch.tensor([0.0, 2.0**-22])

    found = judge(near, host, host.double() + 0.01)

    assert found.right
    assert found.ratio <= 1


@pytest.mark.parametrize(("response", "units"), [(1.0, 5.0), (3.0, 7.0), (5.0, 10.0), (20.0, 40.0)])
def test_a_few_kernels_in_16_bits_round_as_the_result_responds(response: float, units: float):
    exact = torch.ones(4, dtype=torch.float64)
    budget, u = budget_of(OpClass.TRANSCENDENTAL), unit_roundoff(torch.bfloat16)

    bound = budget.bound(exact, exact, torch.bfloat16, 1.0, between=response * exact)

    assert torch.allclose(bound / u, units * exact, rtol=0.01)


@pytest.mark.parametrize("op_class", OpClass)
def test_every_class_has_a_budget(op_class):
    assert budget_of(op_class).host >= 1


def test_unit_roundoffs_are_half_an_ulp_of_one():
    expected = [2.0**-24, 2.0**-11, 2.0**-8, 2.0**-53]

    found = [unit_roundoff(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)]

    assert expected == found


def test_the_hosts_bits_are_right_without_asking_the_oracle():
    value = torch.tensor([1.0, float("nan"), -0.0])

    found = compare(value.clone(), value, lambda: pytest.fail("asked"), OpClass.ELEMENTWISE)

    assert found.right


def test_one_rounding_is_right_and_a_thousand_are_not():
    exact = seeded(65)
    host = exact.float()
    near, far = host.nextafter(torch.tensor(100.0)), host * (1 + 1e-4)

    assert judge(near, host, exact).right
    assert not judge(far, host, exact).right


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
)
def test_wrong_values_in_float8_are_wrong_and_no_error_of_the_suite(dtype):
    exact = torch.linspace(-8, 8, 65, dtype=torch.float64)
    host = exact.to(dtype)

    found = judge(torch.zeros(65, dtype=dtype), host, exact, OpClass.REDUCTION, n=16.0)

    assert not found.right
    assert found.worst == 8.0
    assert judge(host.clone(), host, exact).right


def test_a_device_better_than_the_host_is_right():
    exact = seeded(65)
    sloppy_host = (exact * (1 + 1e-3)).float()

    assert judge(exact.float(), sloppy_host, exact).right


def test_a_device_as_bad_as_the_host_is_right_and_ten_times_worse_is_not():
    exact = seeded(65)
    host, equal, worse = (exact * (1 + e) for e in (1e-4, -2e-4, 3e-3))

    assert judge(equal.float(), host.float(), exact).right
    assert not judge(worse.float(), host.float(), exact).right


def test_one_hopeless_element_of_the_host_excuses_no_other():
    exact = seeded(65)
    exact[7] = 1e-12
    host = exact.float()
    host[7] = 1e-8
    actual, hopeless = (exact * (1 + 1e-3)).float(), host.clone()
    hopeless[7] = -2e-8

    assert not judge(actual, host, exact).right
    assert judge(hopeless, host, exact).right


def test_an_oracle_of_another_function_excuses_nothing():
    host = seeded(65).float()

    assert not judge(host * 1.5, host, -seeded(65)).right


def test_one_wrong_element_is_named_with_its_index_and_budget():
    exact = seeded(13, 5)
    actual = exact.float()
    actual[4, 1] += 0.25

    found = judge(actual, exact.float(), exact)

    assert (found.wrong, found.total, found.index) == (1, 65, (4, 1))
    assert "1/65 elements differ, worst 0.25 at [4, 1], budget" in str(found)


@pytest.mark.parametrize(("error", "words"), [(1e-6, "within"), (1e-3, "outside")])
def test_a_wrong_result_is_compared_with_the_tolerances_of_torch_testing(error, words):
    exact = seeded(65)
    actual = exact.float()
    actual[3] *= 1 + error

    found = judge(actual, exact.float(), exact)

    assert not found.right
    assert f"(over our budget, {words} torch.testing's rtol 1.3e-06, atol 1e-05)" in str(found)


def test_the_tolerances_are_those_of_torch_testing():
    from torch.testing._comparison import default_tolerances

    assert {dtype: default_tolerances(dtype) for dtype in TOLERANCES} == TOLERANCES


class Elements:
    """Exact values of the elements that are asked for, which it notes."""

    def __init__(self, values):
        self._values, self.asked = values, []

    def values(self, positions):
        self.asked += positions
        return [float(self._values[position]) for position in positions]

    def responses(self, positions):
        return [0.0] * len(positions)


def test_exact_elements_judge_where_the_oracle_is_exceeded_and_nowhere_else():
    truth = seeded(65)
    host = truth.clone()
    host[7] *= 1 + 1e-7
    elements = Elements(truth)
    oracle = Exact(host, lambda: None, elements)

    assert compare(truth.clone(), host, lambda: oracle, OpClass.ELEMENTWISE).right
    assert elements.asked == [7]


def test_exact_elements_excuse_no_error_of_the_device():
    truth = seeded(300)
    wrong = truth * (1 + 1e-9)
    elements = Elements(truth)

    found = compare(wrong, truth, lambda: Exact(truth, lambda: None, elements), OpClass.ELEMENTWISE)

    assert found.wrong == 300
    assert len(elements.asked) == 128, "one wrong element ends the work"


def test_swallowed_nan_is_wrong():
    exact = seeded(20)
    exact[3] = float("nan")
    actual = exact.float().nan_to_num(0)

    assert not judge(actual, exact.float(), exact).right


def test_invented_nan_is_wrong():
    exact = seeded(20)
    actual = exact.float()
    actual[3] = float("nan")

    assert not judge(actual, exact.float(), exact).right


def test_infinity_of_the_wrong_sign_is_wrong():
    exact = torch.tensor([float("inf"), 1.0], dtype=torch.float64)

    assert not judge(-exact.float(), exact.float(), exact).right


def test_overflow_of_the_dtype_is_right_where_the_exact_value_overflows():
    exact = torch.tensor([1e6, 0.3], dtype=torch.float64)
    host = torch.tensor([65504.0, 0.3], dtype=torch.float16)
    actual = torch.tensor([float("inf"), 0.3], dtype=torch.float16)

    assert judge(actual, host, exact).right


def test_moving_values_must_not_round():
    exact = seeded(32).float().double()
    host = exact.float()
    actual = host.nextafter(torch.tensor(100.0))

    assert not judge(actual, host, exact).right


def test_without_an_oracle_the_hosts_own_roundings_are_no_evidence_that_nothing_is_rounded():
    host = seeded(65).float()
    near, far = host.nextafter(torch.tensor(100.0)), host * (1 + 1e-4)

    assert compare(near, host, lambda: None, OpClass.ELEMENTWISE).right
    assert not compare(far, host, lambda: None, OpClass.ELEMENTWISE).right


def test_truth_values_in_a_floating_point_tensor_are_compared_with_an_oracle_of_truth_values():
    exact = torch.arange(65) % 2 == 0
    host = exact.float()

    assert judge(torch.where(host == 0, -0.0, host), host, exact).right
    assert not judge(1 - host, host, exact).right


def test_integers_are_exact():
    host = torch.tensor([-3, 7])

    assert not judge(torch.tensor([-4, 7]), host, host).right


def test_complex_values_are_judged():
    exact = torch.complex(seeded(20), seeded(20))
    wrong = exact.conj().resolve_conj().to(torch.complex64)

    assert not judge(wrong, exact.to(torch.complex64), exact).right
    assert judge((exact * (1 + 1e-7)).to(torch.complex64), exact.to(torch.complex64), exact).right


def test_lost_sign_of_zero_is_seen():
    assert not zero_signs(torch.tensor([0.0]), torch.tensor([-0.0])).right


def test_bits_tell_signed_zeros_apart_and_equal_nans():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    ("actual", "word"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), "dtype"),
        (torch.zeros(3, 2), "shape"),
        (torch.zeros(2, 3, requires_grad=True), "requires_grad"),
        (torch.zeros(2, 3, device="meta"), "is on meta"),
        (torch.zeros(2, 3).to_sparse(), "layout"),
    ],
)
def test_metadata_differences_are_named(actual, word):
    assert word in layout.difference(actual, torch.zeros(2, 3), torch.device("cpu"))


def test_a_difference_in_strides_is_named():
    assert "strides are (1, 2)" in layout.stride_difference(torch.zeros(3, 2).T, torch.zeros(2, 3))
    assert layout.stride_difference(torch.zeros(1, 3).T, torch.zeros(3, 1)) == ""


def test_equal_metadata_has_no_difference():
    assert layout.difference(torch.ones(2, 3), torch.zeros(2, 3), torch.device("cpu")) == ""


def test_copies_keep_strides_overlap_and_sharing():
    memory = torch.arange(12.0)
    left, right = memory[::2], memory.as_strided((3, 4), (1, 1))

    copy = copied([left, right, left], CPU)

    assert [tensor.stride() for tensor in copy] == [(2,), (1, 1), (2,)]
    assert copy[0] is copy[2]
    assert copy[0].untyped_storage().data_ptr() == copy[1].untyped_storage().data_ptr() != memory.data_ptr()
    assert torch.equal(right, copy[1])


def test_widening_takes_dtype_arguments_along():
    wide = widened((torch.ones(2, dtype=torch.bfloat16), {"dtype": torch.float32}))

    assert wide[0].dtype is torch.float64
    assert wide[1] == {"dtype": torch.float64}

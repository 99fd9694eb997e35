"""What operator cells read beyond ordinary values: special values, integers behind 2^53, wrong calls, cotangents.

Each defect shows for these inputs alone. Devices that differ from the host where PyTorch promises nothing are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.judging.checker import Checker
from conformance.numerics.trees import mapped
from conformance.suites.foreach import functions, special_lists, special_operands
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.inputs import special_inputs

from .test_operators_detect import run

Reading = Callable[[torch.Tensor], torch.Tensor]
HOST = torch.device("cpu")


def is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def without_nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isnan(), torch.zeros_like(tensor), tensor) if is_real(tensor) else tensor


def without_infinity(tensor: torch.Tensor) -> torch.Tensor:
    limit = torch.finfo(tensor.dtype).max if is_real(tensor) else 0
    return tensor.clamp(-limit, limit) if is_real(tensor) else tensor


def without_negative_zero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.0 if is_real(tensor) else tensor


def without_subnormals(tensor: torch.Tensor) -> torch.Tensor:
    if not is_real(tensor):
        return tensor
    return torch.where(tensor.abs() < torch.finfo(tensor.dtype).smallest_normal, torch.zeros_like(tensor), tensor)


def through_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().to(torch.int64) if tensor.dtype is torch.int64 else tensor


def reads(reading: Reading) -> Callable[..., Any]:
    """Return a device that reads its tensors in this way."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        def changed(leaf: Any) -> Any:
            return reading(leaf) if isinstance(leaf, torch.Tensor) and not leaf.requires_grad else leaf

        return call(function, sample.with_arguments(mapped(sample.arguments, changed)), **extra)

    return execute


@pytest.mark.parametrize(
    ("reading", "cell", "message"),
    [
        (without_nan, "mm[float32-inference]", "NaN in input 0"),
        pytest.param(without_nan, "nn.functional.conv2d[float32-inference]", "NaN in input 0", marks=pytest.mark.long),
        (without_infinity, "sum[float32-inference]", "infinities in input 0"),
        (without_infinity, "clamp[float32-inference]", "infinities in input"),
        (without_infinity, "gather[float32-inference]", "bits of some have changed"),
        (without_negative_zero, "index_select[float32-inference]", "bits of some have changed"),
        (without_subnormals, "flip[float32-inference]", "bits of some have changed"),
        (without_subnormals, "mm[float32-inference]", "subnormal numbers in input"),
        (without_subnormals, "addcmul[float32-inference]", "zeros in input .* are lost"),
        (without_subnormals, "nn.functional.binary_cross_entropy[float32-inference]", "subnormal numbers in input 0"),
        (without_nan, "nonzero[float32-inference]", "NaN in input 0, output 0: the shape"),
        (without_nan, "prod[float32-inference]", r"shape \(5, 5, 5\)\), NaN in input 0"),
        (through_double, "sort[int64-inference]", "integers (times|plus) 9007199254740993"),
        (through_double, "trunc[int64-inference]", "integers times 9007199254740993"),
        (through_double, "addbmm[int64-inference]", "integers times 9007199254740993"),
    ],
)
def test_a_lost_special_value_is_wrong(
    reading: Reading, cell: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_plain = run(f"operators.{cell}")
    assert run_plain.count > 10
    monkeypatch.setattr(execution, "execute", reads(reading))

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{cell}")


@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extremum_at_a_later_nan_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several maximal values, the first one's index is returned, and NaN is maximal (torch.max)."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        dim = sample.args[0] if sample.args else sample.kwargs.get("dim")
        if not isinstance(result, tuple) or not isinstance(dim, int) or not sample.input.dim():
            return result
        values, index = result
        nan, keeps = sample.input.isnan(), values.dim() == sample.input.dim()
        last = sample.input.shape[dim] - 1 - nan.flip(dim).int().argmax(dim, keepdim=keeps)
        return type(result)((values, torch.where(nan.any(dim, keepdim=keeps), last, index)))

    cell = f"operators.{name}.reduction_with_dim[float32-inference]"
    run(cell)
    monkeypatch.setattr(execution, "execute", execute)

    with pytest.raises(AssertionError, match="NaN in input 0, output 1"):
        run(cell)


def test_a_comparison_with_zero_that_loses_subnormal_numbers_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for a tensor and a number are others than those for two tensors."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        beside_zero = len(sample.args) == 1 and type(sample.args[0]) is int
        return (reads(without_subnormals) if beside_zero else call)(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", execute)

    with pytest.raises(AssertionError, match="special values and zero"):
        run("operators.gt[float32-inference]")


def reads_cotangents(reading: Reading) -> Callable[..., Any]:
    """Return a backward that reads its cotangents in this way."""

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        return execution.host_gradients(outputs, inputs, [reading(each) for each in cotangents])

    return gradients


def through_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype) if is_real(tensor) else tensor


def overwritten(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    tensor.zero_() if 0 not in tensor.stride() else None
    return result


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (without_nan, "NaN in the cotangents"),
        (without_infinity, "infinities in the cotangents"),
        (through_bfloat16, "cotangents with gaps"),
        (overwritten, "the backward changed the gradient that it got"),
    ],
)
def test_a_backward_that_changes_its_cotangents_is_wrong(
    reading: Reading, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "gradients", reads_cotangents(reading))

    with pytest.raises(AssertionError, match=message):
        run("operators.mm[float32-training]")


def stands_still(function: Any, sample: Call, **extra: Any) -> Any:
    """Return the first input in the place of the next number: less than one rounding of float64's next number."""
    result = call(function, sample, **extra)
    is_plain = isinstance(result, torch.Tensor) and not extra and result.shape == sample.input.shape
    return sample.input.clone() if is_plain else result


def another_largest(function: Any, sample: Call, **extra: Any) -> Any:
    """Return 1e38 in the place of infinities: float64's largest number is further away than each of float32's."""
    result = call(function, sample, **extra)
    return torch.where(sample.input.isposinf(), 1e38, result).to(result.dtype) if not extra else result


@pytest.mark.parametrize(
    ("device", "cell"),
    [(stands_still, "nextafter[float32-inference]"), (another_largest, "nan_to_num[float32-inference]")],
)
def test_a_number_of_the_dtype_itself_is_no_number_of_a_wider_one(
    device: Callable[..., Any], cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(f"operators.{cell}").count > 10
    monkeypatch.setattr(execution, "execute", device)

    with pytest.raises(AssertionError, match="elements differ"):
        run(f"operators.{cell}")


# --- right devices ----------------------------------------------------------------------------------------------------


def test_a_device_that_spreads_nan_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions by transforms give NaN for every output of an image that contains one."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if isinstance(result, torch.Tensor) and not all(t.isfinite().all() for t in sample.tensors):
            return torch.full_like(result, float("nan"))
        return result

    monkeypatch.setattr(execution, "execute", execute)

    assert run("operators.nn.functional.conv2d[float32-inference]").count > 10


def test_a_place_that_depends_on_no_special_value_may_be_finite() -> None:
    """0 times NaN is NaN on the host. A kernel that does not read what it does not need gives 0."""
    actual, wanted = torch.tensor([0.0, 0.0, 2.0]), torch.tensor([float("nan"), float("nan"), 2.0])

    read = lambda number: torch.tensor([0.0, number, 2.0])  # noqa: E731
    for of_nan in (True, False):
        judged = special_inputs._with_losses_alone(actual, wanted, read, of_nan=of_nan)

        assert judged.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize(("of_nan", "is_lost"), [(True, True), (False, False)])
def test_infinity_in_the_place_of_nan_is_lost_where_no_infinity_was(of_nan: bool, is_lost: bool) -> None:
    """The difference of two infinities is NaN, or an infinity in another order; a quotient by NaN is always NaN."""
    actual, wanted = torch.tensor([torch.inf, 1.0]), torch.tensor([torch.nan, 1.0])
    read = lambda number: torch.tensor([number, 1.0])  # noqa: E731

    judged = special_inputs._with_losses_alone(actual, wanted, read, of_nan=of_nan)

    assert bool(judged.isinf().any()) is is_lost


# --- wrong calls ------------------------------------------------------------------------------------------------------


def swallows(kept: Callable[[Call], Any]) -> Callable[..., Any]:
    """Return a device that gives something where it has to refuse."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        try:
            return call(function, sample, **extra)
        except Exception:
            return kept(sample)

    return execute


@pytest.mark.parametrize("name", ["dot", "median", "nn.functional.max_pool3d", "nn.functional.conv2d"])
def test_an_operator_that_refuses_nothing_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", swallows(lambda sample: torch.zeros_like(sample.tensors[0])))

    with pytest.raises(AssertionError, match="accepted, although PyTorch"):
        run(f"operators.{name}[float32-inference]")


@pytest.mark.parametrize(
    "cell", ["bincount[int64-inference]", "unique_consecutive[float32-inference]", "histogram[float32-inference]"]
)
def test_a_refusal_that_no_meta_function_knows_may_not_become_zeros(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", swallows(lambda sample: torch.zeros_like(sample.tensors[0])))

    with pytest.raises(AssertionError, match="accepted, although PyTorch refuses it, and nothing was computed"):
        run(f"operators.{cell}")


def test_a_device_that_computes_what_the_host_refuses_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts tensors of any shape and dtype, and takes a weight of 1 where one is missing."""

    def counted(sample: Call) -> Any:
        weights = next((given for given in (*sample.args, *sample.kwargs.values()) if given is not None), None)
        numbers = sample.input.to(torch.int64).reshape(-1)
        if isinstance(weights, torch.Tensor):
            ones = torch.ones(numbers.numel(), dtype=torch.float64)
            given = weights.double().reshape(-1)[: numbers.numel()]
            ones[: given.numel()] = given
            return torch.bincount(numbers, ones)
        return torch.bincount(numbers)

    monkeypatch.setattr(execution, "execute", swallows(counted))

    assert run("operators.bincount[int64-inference]").count > 10


# --- lists ------------------------------------------------------------------------------------------------------------


def list_check(name: str, dtype: torch.dtype, check: Callable[..., None]) -> None:
    function = functions.functions()[name]
    for one in function.calls:
        check(Checker(), function, one, "", HOST, dtype)


def test_a_function_on_lists_that_loses_special_values_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    list_check("neg", torch.float32, special_lists.check_values)
    right = torch._foreach_neg
    monkeypatch.setattr(torch, "_foreach_neg", lambda given: right([without_negative_zero(each) for each in given]))

    with pytest.raises(AssertionError, match="wrong sign"):
        list_check("neg", torch.float32, special_lists.check_values)


def test_a_function_on_lists_that_loses_infinity_beside_a_number_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the largest number is infinite too, so the number has to be below one."""
    list_check("mul", torch.float32, special_lists.check_values)
    right = torch._foreach_mul

    def mul(given: Any, other: Any) -> Any:
        return right([without_infinity(each) for each in given] if type(other) is float else given, other)

    monkeypatch.setattr(torch, "_foreach_mul", mul)

    with pytest.raises(AssertionError, match=r"an odd number .*: where it is infinite"):
        list_check("mul", torch.float32, special_lists.check_values)


@pytest.mark.parametrize(
    ("name", "reading", "message"),
    [
        ("addcdiv", without_negative_zero, "where it is infinite, and its sign"),
        ("log10", without_subnormals, "lost a subnormal number"),
    ],
)
def test_a_misread_operand_of_a_function_on_lists_is_wrong(
    name: str, reading: Reading, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_check(name, torch.float32, special_operands.check_operands)
    right, calls = special_operands._Call.on, iter(range(10**6))

    def on(given: Any, device: torch.device) -> Any:
        # The host is the device here: the reference in float64 and the host come first, and then the device.
        return right(replace(given, operands=mapped(given.operands, read)) if next(calls) % 3 == 2 else given, device)

    def read(leaf: Any) -> Any:
        return reading(leaf) if isinstance(leaf, torch.Tensor) else leaf

    monkeypatch.setattr(special_operands._Call, "on", on)

    with pytest.raises(AssertionError, match=message):
        list_check(name, torch.float32, special_operands.check_operands)


def test_a_function_on_lists_that_rounds_integers_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._foreach_neg
    monkeypatch.setattr(torch, "_foreach_neg", lambda given: right([through_double(each) for each in given]))

    with pytest.raises(AssertionError, match="_foreach_neg"):
        list_check("neg", torch.int64, special_lists.check_values)


def test_a_function_on_lists_that_refuses_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    list_check("add", torch.float32, special_lists.check_refusals)
    right = torch._foreach_add

    def add(given: Any, *others: Any, **options: Any) -> Any:
        try:
            return right(given, *others, **options)
        except RuntimeError:
            if any(each.is_meta for each in given) or reference:
                raise
            return given

    reference: list[bool] = []
    monkeypatch.setattr(torch, "_foreach_add", add)
    calls = iter(range(10**6))

    def refuses(run: Any, first: Any, arguments: Any, one: Any, device: torch.device) -> bool:
        # The host is the device here: the second of its calls is the device's.
        reference[:] = [True] if device.type == "meta" or next(calls) % 2 == 0 else []
        return original(run, first, arguments, one, device)

    original = special_lists._refuses
    monkeypatch.setattr(special_lists, "_refuses", refuses)

    with pytest.raises(AssertionError, match="which PyTorch refuses"):
        list_check("add", torch.float32, special_lists.check_refusals)

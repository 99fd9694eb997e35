"""Operator cells accuse no device that is right and has other habits than PyTorch's CPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from conformance.base import seeding
from conformance.judging.checker import Checker
from conformance.judging.finding import Finding
from conformance.numerics import layout
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import leaves, mapped
from conformance.process import state
from conformance.reports.verdict import Reason
from conformance.suites.operators import cell
from conformance.suites.operators.calls import database, execution, repeated_writes
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.factors import with_positive_diagonal
from conformance.suites.operators.checks import error_inputs, wrong_calls
from conformance.suites.operators.inputs import arrangements, families, statements
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.judging import with_equal_strides
from conformance.suites.runtime import test_rates
from tests.defects import bench
from tests.faults.overriding import overridden
from tests.layers import longer

from .python_device import Wrapper, python_device
from .test_operators_detect import CPU, planned, run


def without_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the families out that call other forms."""
    all_of = families.families
    few = lambda mode: [family for family in all_of(mode) if family.stage is not families.Stage.FORMS]  # noqa: E731
    monkeypatch.setattr("conformance.suites.operators.cell.families", few)


@pytest.fixture
def device() -> Iterator[torch.device]:
    with python_device() as found:
        yield found


def on(device: torch.device, name: str) -> Checker:
    """The cell on that device. It does compute on the host, which the cell reports last."""
    check = Checker()
    try:
        cell.run(planned()[name], device, check)
    except Finding as found:
        if found.reason is not Reason.FALLBACK:
            raise
    return check


def with_habit(monkeypatch: pytest.MonkeyPatch, habit: Callable[..., Any], name: str) -> Checker:
    """The cell on a device whose operator calls go through ``habit``."""
    monkeypatch.setattr(execution, "execute", habit)
    return run(f"operators.{name}")


# --- tensors without an address -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["exp", "add", "mm", "transpose", "clone", "sum", "sort", "view", "cat", "nn.functional.linear", "sin"]
)
def test_wrappers_in_python_are_judged_like_other_tensors(name: str, device: torch.device) -> None:
    check = on(device, f"operators.{name}[float32-inference]")

    assert check.count > 10


@pytest.mark.parametrize("name", ["gather", "cat"])
def test_wrappers_refuse_error_inputs(name: str, device: torch.device) -> None:
    assert on(device, f"operators.{name}[error-inputs]").count > 0


def test_what_cannot_be_seen_accuses_nobody(device: torch.device) -> None:
    wrapper, other = Wrapper(torch.ones(3)), Wrapper(torch.ones(3))

    assert layout.storage_address(wrapper) is None
    assert layout.shares_memory(wrapper, wrapper) is True
    assert layout.shares_memory(wrapper, other) is None
    assert layout.shares_memory(torch.ones(3), torch.ones(3)) is False


class OnlyMine(TorchFunctionMode):
    """Mode of a backend that cannot take part in computations of the host."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("where", "isfinite", "randint", "equal", "isnan"):
            raise NotImplementedError(f"no kernel for {function.__name__}")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["exp[float32-inference]", "add[float32-inference]", "gather[error-inputs]"])
def test_modes_of_a_backend_take_no_part_in_the_hosts_work(name: str, device: torch.device) -> None:
    with OnlyMine() as mode:
        assert on(device, f"operators.{name}").count > 0
        assert _get_current_function_mode_stack() == [mode]


class Disagreeing(torch.Tensor):
    """Tensor with a shape of its own and the strides of another."""

    shape = torch.Size([2, 3])


def test_strides_that_disagree_with_the_shape_are_no_error_of_the_suite() -> None:
    odd = torch.ones(6).as_subclass(Disagreeing)

    assert layout.significant_strides(odd) == (1,)
    assert layout.stride_difference(odd, torch.ones(2, 3)) == "strides are (1,), expected (3, 1)"


class OnHost(torch.Tensor):
    """Subclass on the host that does not let its bits be read."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("view", "resolve_conj", "equal"):
            raise NotImplementedError(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_results_that_are_not_plain_are_compared() -> None:
    values = torch.tensor([1.0, float("nan"), -0.0])

    assert type(plain(values.as_subclass(OnHost))) is torch.Tensor
    assert same_bits(plain(values.as_subclass(OnHost)), values)


# --- other habits ---------------------------------------------------------------------------------------------------


def columns_first(function: Any, sample: Call, **extra: Any) -> Any:
    """Give every new matrix the layout that Fortran libraries give it."""
    result = call(function, sample, **extra)
    in_place = str(getattr(function, "__name__", "")).endswith("_")
    if extra or in_place or not isinstance(result, torch.Tensor) or result.dim() < 2:
        return result
    if result.data_ptr() in [tensor.data_ptr() for tensor in sample.tensors]:
        return result
    return result.mT.clone(memory_format=torch.contiguous_format).mT


@pytest.mark.parametrize(
    "name", ["fft.fft2[complex64-inference]", "fft.rfft[float32-inference]", "nn.functional.linear[float32-inference]"]
)
def test_strides_that_nobody_promises_are_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, columns_first, name).count > 0


def resized_by_columns(function: Any, sample: Call, **extra: Any) -> Any:
    before = extra["out"].shape if isinstance(extra.get("out"), torch.Tensor) else None
    result = call(function, sample, **extra)
    if before is not None and before != result.shape and result.dim() >= 2:
        values = result.clone()
        extra["out"].set_(torch.empty_like(result.mT, memory_format=torch.contiguous_format).mT).copy_(values)
    return result


def test_strides_of_a_resized_output_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, resized_by_columns, "add[float32-inference]").count > 0


@pytest.mark.parametrize("name", ["add", "sin", "mm", "cumsum"])
def test_promised_strides_are_demanded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="strides are"):
        with_habit(monkeypatch, columns_first, f"{name}[float32-inference]")


def positive_zeros(function: Any, sample: Call, **extra: Any) -> Any:
    result = call(function, sample, **extra)
    plain_call = not extra and not str(getattr(function, "__name__", "")).endswith("_")
    return torch.where(result == 0, torch.zeros_like(result), result) if plain_call else result


def positive_in_ties(function: Any, sample: Call, **extra: Any) -> Any:
    """Give 0 where the operator has two zeros to choose from; IEEE 754-2019, 9.6, defines all other choices."""
    result = call(function, sample, **extra)
    is_plain = not extra and not str(getattr(function, "__name__", "")).endswith("_") and len(sample.tensors) == 2
    if not is_plain or not isinstance(result, torch.Tensor):
        return result
    first, second = torch.broadcast_tensors(*sample.tensors)
    return torch.where((first == 0) & (second == 0), torch.zeros_like(result), result)


@pytest.mark.parametrize("name", ["fmax", "fmin", "maximum", "minimum"])
def test_signs_of_equal_zeros_are_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, positive_in_ties, f"{name}[float32-inference]").count > 0


@pytest.mark.parametrize("name", ["nn.functional.relu", "nn.functional.hardshrink", "sign"])
def test_signs_of_zero_that_are_open_are_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, positive_zeros, f"{name}[float32-inference]").count > 0


@pytest.mark.parametrize("name", ["neg", "mul", "sin", "ceil", "copysign"])
def test_signs_of_zero_that_are_defined_are_demanded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="wrong sign"):
        with_habit(monkeypatch, positive_zeros, f"{name}[float32-inference]")


def accepts_strides(function: Any, sample: Call, **extra: Any) -> Any:
    """Compute with inputs of any strides."""
    dense = mapped(sample.arguments, lambda leaf: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf)
    try:
        return call(function, sample, **extra)
    except RuntimeError:
        return call(function, sample.with_arguments(dense), **extra)


def test_a_device_may_support_strides_that_the_cpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, accepts_strides, "native_group_norm[float32-inference]").count > 0


def test_what_only_the_device_supports_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        if all(tensor.is_contiguous() for tensor in sample.tensors):
            return call(function, sample, **extra)
        first, *rest = accepts_strides(function, sample, **extra)
        return (first + 1, *rest)

    with pytest.raises(AssertionError, match="elements differ"):
        with_habit(monkeypatch, habit, "native_group_norm[float32-inference]")


def resizes_always(function: Any, sample: Call, **extra: Any) -> Any:
    """Resize a wrong output without a warning, also where the number of elements happens to be right."""
    result = call(function, sample)
    out = extra.get("out")
    if not isinstance(out, torch.Tensor) or out.dtype != result.dtype or out.shape == result.shape:
        return call(function, sample, **extra) if extra else result
    with mock.patch("warnings.warn"):
        return out.resize_(0).resize_(result.shape).copy_(result)


@pytest.mark.parametrize("name", ["linspace", "logspace", "exp"])
def test_an_empty_output_may_be_resized(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, resizes_always, f"{name}[float32-inference]").count > 0


def test_a_missing_warning_is_a_note_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = with_habit(monkeypatch, resizes_always, "exp[float32-inference]")

    assert check.metrics["resize_warning"] == "missing"

    def wrong_in_place(function: Any, sample: Call, **extra: Any) -> Any:
        result = resizes_always(function, sample, **extra)
        return result.add_(1) if str(getattr(function, "__name__", "")) == "exp_" else result

    with pytest.raises(AssertionError, match="in-place variant"):
        with_habit(monkeypatch, wrong_in_place, "exp[float32-inference]")


def refuses_to_resize(function: Any, sample: Call, **extra: Any) -> Any:
    """Write only into outputs of the right size."""
    if "out" in extra:
        right, given = ([leaf.shape for leaf in leaves(value)] for value in (call(function, sample), extra["out"]))
        if right != given:
            raise NotImplementedError("allocate the out= tensor at the right size")
    return call(function, sample, **extra)


@pytest.mark.parametrize("name", ["exp", "add", "topk", "linalg.svd"])
def test_a_refusal_to_resize_is_a_note_and_hides_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, refuses_to_resize, f"{name}[float32-inference]").metrics["resize"] == "refused"


def test_a_refusal_to_resize_hides_no_wrong_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_in_place(function: Any, sample: Call, **extra: Any) -> Any:
        result = refuses_to_resize(function, sample, **extra)
        return result.add_(1) if str(getattr(function, "__name__", "")) == "exp_" else result

    with pytest.raises(AssertionError, match="in-place variant"):
        with_habit(monkeypatch, wrong_in_place, "exp[float32-inference]")


def test_outputs_of_the_right_size_have_to_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(function: Any, sample: Call, **extra: Any) -> Any:
        if "out" in extra:
            raise NotImplementedError("no out=")
        return call(function, sample, **extra)

    with pytest.raises(NotImplementedError, match="no out="):
        with_habit(monkeypatch, refuses, "exp[float32-inference]")


class Queued(torch.Tensor):
    """Result of work that has failed; the exception comes when the values are read."""

    error: Exception

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("copy_", "detach", "cpu"):
            raise next(leaf for leaf in args if isinstance(leaf, Queued)).error
        return super().__torch_function__(function, types, args, kwargs or {})


def refuses_later(function: Any, sample: Call, **extra: Any) -> Any:
    """Refuse as the CPU does, but when the values are read."""
    try:
        return call(function, sample, **extra)
    except Exception as error:
        refusal = error
    dense = mapped(sample.arguments, lambda leaf: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf)
    try:
        shaped = call(function, sample.with_arguments(dense), **extra)
    except Exception:
        shaped = torch.zeros(3)
    return mapped(shaped, lambda leaf: _queued(leaf, refusal))


def _queued(leaf: Any, refusal: Exception) -> Any:
    result = torch.zeros(leaf.shape, dtype=leaf.dtype).as_subclass(Queued)
    result.error = refusal
    return result


@pytest.mark.parametrize(
    "name", ["native_group_norm[float32-inference]", "gather[error-inputs]", "cumsum[float32-inference]"]
)
def test_a_refusal_of_queued_work_is_a_refusal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, refuses_later, name).count > 0


def statistics_as_described(function: Any, sample: Call, **extra: Any) -> Any:
    """Return the statistics that the meta function describes, as CUDA does; in evaluation the CPU returns none."""
    result, mean, deviation = call(function, sample, **extra)
    if mean.numel() == 0 and result.dim() > 1:
        mean, deviation = (result.new_full(result.shape[1:2], 7.0) for _ in "ab")
    return result, mean, deviation


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_shape_in_which_pytorchs_own_devices_differ_is_free(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_habit(monkeypatch, statistics_as_described, f"{name}[float32-{mode}]").count > 0


def test_a_shape_that_nobody_describes_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(function: Any, sample: Call, **extra: Any) -> Any:
        result, mean, deviation = statistics_as_described(function, sample, **extra)
        return result, torch.cat([mean, mean[:1]]), deviation

    with pytest.raises(AssertionError, match="shape is"):
        with_habit(monkeypatch, one_more, "native_batch_norm[float32-inference]")


# --- roundings that another algorithm has ---------------------------------------------------------------------------

UNIT = 2.0**-24


def with_gradients(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    """Run the training cell on a device whose gradients go through ``change``."""

    def gradients(outputs: Any, inputs: Any, cotangents: Any) -> Any:
        found = execution.host_gradients(outputs, inputs, cotangents)
        return [None if gradient is None else change(gradient) for gradient in found]

    monkeypatch.setattr(execution, "gradients", gradients)
    assert run(f"operators.{name}[float32-training]").count > 0


def noisy(units: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Add an error relative to the norm of the tensor, as every transform by sums has it."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        signs = torch.where(torch.arange(tensor.numel()) % 2 == 0, 1.0, -1.0).reshape(tensor.shape)
        return tensor + units * UNIT * tensor.square().mean().sqrt() * signs

    return change


@pytest.mark.parametrize("name", longer(["fft.fft", "fft.rfft", "fft.irfftn", "fft.ihfft2", "stft"]))
def test_gradients_of_transforms_have_errors_relative_to_their_norm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gradients(monkeypatch, noisy(4), name)

    with pytest.raises(AssertionError, match="elements differ"):
        with_gradients(monkeypatch, noisy(1000), name)


def test_the_gradient_of_one_normalised_element_is_what_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        return 4 * gradient if gradient.numel() == 1 and 0 < gradient.abs() < 1e-6 else gradient

    with_gradients(monkeypatch, change, "nn.functional.rms_norm")


@pytest.mark.parametrize(("units", "right"), [(6, True), (400, False)])
def test_normalized_vectors_may_have_the_roundings_of_their_norm(
    units: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        return call(function, sample, **extra) * (1 + units * UNIT)

    with contextlib.nullcontext() if right else pytest.raises(AssertionError, match="elements differ"):
        with_habit(monkeypatch, habit, "nn.functional.normalize[float32-inference]")


# --- what documentation leaves open ---------------------------------------------------------------------------------


def reversed_order(function: Any, sample: Call, **extra: Any) -> Any:
    result = call(function, sample, **extra)
    if isinstance(result, torch.Tensor):
        return result.flip(-1)
    return type(result)((result[0].flip(-1), result[1].flip(-1)))


@pytest.mark.parametrize("name", ["linalg.eig", "linalg.eigvals"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_eigenvalues_have_no_order(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_forms(monkeypatch)

    assert with_habit(monkeypatch, reversed_order, f"{name}[float32-{mode}]").count > 0

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        result = reversed_order(function, sample, **extra)
        return result + 0.1 if isinstance(result, torch.Tensor) else type(result)((result[0] + 0.1, result[1]))

    with pytest.raises(AssertionError, match="elements differ"):
        with_habit(monkeypatch, wrong, f"{name}[float32-{mode}]")


@pytest.mark.parametrize("name", ["mode", "median", "kthvalue"])
@pytest.mark.parametrize("right", [True, False])
def test_any_index_of_an_equal_element_is_right(name: str, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device names the last of equal elements, or none of them."""

    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if extra or isinstance(result, torch.Tensor) or sample.input.dim() != 1:
            return result
        values, indices = result
        others = (sample.input == values) if right else (sample.input != values)
        if not bool(others.any()):  # NaN equals nothing
            return result
        return type(result)((values, torch.full_like(indices, int(others.nonzero().max()))))

    with contextlib.nullcontext() if right else pytest.raises(AssertionError, match="differ"):
        with_habit(monkeypatch, habit, f"{name}[float32-inference]")


def first_of(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return where each run of equal values along a dimension begins."""
    before = values.narrow(dim, 0, 1), values.narrow(dim, 0, values.shape[dim] - 1)
    is_new = (values != torch.cat(before, dim)) & ~(values.isnan() & torch.cat(before, dim).isnan())
    places = torch.arange(values.shape[dim]).view([-1] + [1] * (values.dim() - 1 - dim % values.dim()))
    return (is_new * places).cummax(dim).values


class OtherMaximum:
    """A device that names another of equal maxima of a window, or an element that is no maximum."""

    def __init__(self, *, right: bool) -> None:
        self.right = right
        self.others = 0

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        if "out" in extra or sample.input.dim() < 2:
            return call(function, sample, **extra)
        result = call(function, sample, **extra)
        if isinstance(result, torch.Tensor):
            return result
        values, index = result[0].detach(), result[1]
        rows, dim = self.rows(function, sample, sample.input.detach())
        if not self.right:
            other = (index + 1) % rows.shape[dim]
        elif function in (torch.cummax, torch.cummin):
            other = first_of(values, dim)
        else:
            lowest = rows.scatter(dim, self.rows(function, sample, index)[0], -torch.inf)
            again = call(function, sample.with_tensor(sample.input, lowest.view(sample.input.shape)), **extra)
            other = torch.where(again[0] == values, again[1], index)
        self.others += int((other != index).sum())
        picked = self.rows(function, sample, sample.input)[0].gather(dim, self.rows(function, sample, other)[0])
        return type(result)((picked.view(values.shape), other))

    @staticmethod
    def rows(function: Any, sample: Call, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if function in (torch.cummax, torch.cummin):
            return tensor, sample.kwargs.get("dim", sample.args[0] if sample.args else -1)
        return tensor.flatten(-2), -1


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("nn.functional.adaptive_max_pool2d", "inference"),
        *itertools.product(("cummax", "cummin", "nn.functional.max_pool2d"), ("inference", "training")),
    ],
)
@pytest.mark.parametrize("right", [True, False])
def test_any_of_equal_maxima_of_a_window_is_right(
    name: str, mode: str, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.suites.operators.checks.kernels.check", lambda *arguments: None)
    device, dtype = OtherMaximum(right=right), "float16" if name.startswith("cum") else "bfloat16"

    with contextlib.nullcontext() if right else pytest.raises(AssertionError, match="differ"):
        with_habit(monkeypatch, device, f"{name}[{dtype}-{mode}]")
    assert device.others or not right


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([3.0, 0.0, 1.0], [3.0, 0.0, 1.0]),  # both windows choose the first of the equal elements
        ([2.0, 0.0, 1.0], [1.0, 2.0, 1.0]),  # a gradient is lost
        ([1.0, 2.0, 0.0], [1.0, 2.0, 1.0]),  # the element that equals no other has another gradient
    ],
)
def test_the_gradient_may_go_to_any_of_equal_maxima(found: list[float], expected: list[float]) -> None:
    info = SimpleNamespace(name="nn.functional.max_pool1d")
    sample = Call(0, torch.tensor([[5.0, 5.0, 4.0]]))

    settled = choices.settled_gradient(info, sample, torch.tensor([found]), torch.tensor([[1.0, 2.0, 1.0]]))

    assert settled.tolist() == [expected]


# --- factors, draws and references ----------------------------------------------------------------------------------


def with_other_signs(function: Any, sample: Call, **extra: Any) -> Any:
    """Call a QR, and give each second column of Q and row of R the opposite sign, or another phase."""
    result = call(function, sample, **extra)
    if "out" in extra:
        return result
    q, r = result
    count = min(r.shape[-2:])
    signs = torch.ones(count, dtype=r.dtype)
    signs[::2] = 1j if r.is_complex() else -1
    columns = torch.cat([signs.conj(), torch.ones(max(q.shape[-1] - count, 0), dtype=r.dtype)])
    rows = torch.cat([signs, torch.ones(r.shape[-2] - count, dtype=r.dtype)])
    return type(result)((q * columns[: q.shape[-1]] if q.numel() else q, r * rows.unsqueeze(-1)))


@pytest.mark.parametrize("name", ["qr", "linalg.qr"])
@pytest.mark.parametrize("kind", ["float32-inference", "float64-training", "complex64-inference", "complex64-training"])
def test_signs_of_a_qr_are_open(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, with_other_signs, f"{name}[{kind}]").count > 10

    def wrong(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        return type(result)((result[0] * 1.001, result[1]))

    with pytest.raises(AssertionError, match="differ"):
        with_habit(monkeypatch, wrong, f"{name}[{kind}]")


def test_further_columns_of_a_complete_qr_are_any_basis_of_their_space() -> None:
    matrix = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, r = torch.linalg.qr(matrix, mode="complete")
    turn = torch.linalg.qr(torch.arange(9.0, dtype=torch.float64).reshape(3, 3) ** 2).Q

    due, found = (with_positive_diagonal((each, r)) for each in (q, torch.cat([q[:, :2], q[:, 2:] @ turn], dim=1)))

    for left, right in zip(due, found, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("name", ["masked.var[int64-inference]", "masked.std[int8-inference]"])
def test_integers_that_become_float32_are_rounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        return torch.nextafter(result, torch.full_like(result, torch.inf)) if result.is_floating_point() else result

    assert with_habit(monkeypatch, habit, name).count > 0


def test_few_seeds_may_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_first(function: Any, sample: Call, *, until: int, **extra: Any) -> Any:
        if torch.initial_seed() <= until:
            execution.reseed(1, CPU)
        return call(function, sample, **extra)

    check = with_habit(monkeypatch, functools.partial(as_first, until=5), "bernoulli[float32-inference]")

    assert check.count > 0
    with pytest.raises(AssertionError, match="another seed gave the same numbers"):
        with_habit(monkeypatch, functools.partial(as_first, until=50), "bernoulli[float32-inference]")


def test_a_refusal_at_the_read_holds_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that records calls refuses a call at each synchronization while its result lives."""
    made: list[weakref.ref[torch.Tensor]] = []

    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("mixed dtypes were recorded")

    def result(*_: Any) -> torch.Tensor:
        tensor = torch.ones(3)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(execution, "plain", refuse)
    monkeypatch.setattr(error_inputs, "plain", refuse)
    refusals = [
        execution.settled(execution.Attempt(result())).error,
        error_inputs._refusal(result, SimpleNamespace(op=None), Call(0, None)),
    ]

    assert [str(refusal) for refusal in refusals] == ["mixed dtypes were recorded"] * 2
    assert [tensor() for tensor in made] == [None, None]


@pytest.mark.parametrize("kind", ["mps", "lazy"])  # a module without manual_seed_all, and no module
def test_a_device_is_seeded_whatever_its_module_has(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(seeding, "_under_test", [])
    monkeypatch.setattr(torch, "manual_seed", seeded.append)

    execution.reseed(7, torch.device(kind))

    assert (seeded, torch.initial_seed()) == ([7], 7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_cpu_itself_computes_otherwise_into_an_output_is_free(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's CPU reads non-contiguous input of native_batch_norm as if it were contiguous, with ``out=`` alone."""

    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        if "out" not in extra or any(out.dtype is not sample.input.dtype for out in extra["out"]):
            return call(function, sample, **extra)
        contiguous = arrangements.dense(sample).on(CPU)
        written = call(function, contiguous)
        for old, new in zip(sample.tensors, contiguous.tensors, strict=True):
            if not torch.equal(old, new):
                old.copy_(new)
        for out, new in zip(extra["out"], written, strict=True):
            out.resize_(new.shape).copy_(new)
        return extra["out"]

    assert with_habit(monkeypatch, habit, f"native_batch_norm[{dtype}-inference]").count > 10


def test_an_input_may_keep_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        shape = sample.input.shape
        result = call(function, sample, **extra)
        if sample.input.shape != shape:
            raise RuntimeError("an in-place call cannot change the shape of its input")
        return result

    check = with_habit(monkeypatch, habit, "addbmm[float32-inference]")

    assert check.metrics["in_place_resize"] == "refused"


def test_a_view_may_end_in_memory_that_the_allocator_has_added() -> None:
    assert not wrong_calls._has_more_memory(Call(0, torch.zeros(3)))
    assert wrong_calls._has_more_memory(Call(0, torch.zeros(128)[:3]))


def written_backwards(function: Any, sample: Call, **extra: Any) -> Any:
    """Call with the pairs of index and value in the opposite order: another one is written last."""
    last = len(sample.tensors) - 1
    if last and "unpool" in function.__name__:
        values, places = sample.tensors[:2]
        sample = sample.with_tensor(values, values.flip(-1)).with_tensor(places, places.flip(-1))
    elif function.__name__.startswith("scatter") and last == 2:
        dim, places, values = sample.args
        values = values[tuple(slice(0, size) for size in places.shape)] if places.dim() else values
        sample = replace(sample, args=(dim, *(each.flip(dim) if each.dim() else each for each in (places, values))))
    elif function.__name__.startswith("put") and last == 2:
        places, values = (each.reshape(-1).flip(0) for each in sample.args[:2])
        sample = replace(sample, args=(places, values, *sample.args[2:]))
    elif function.__name__.startswith("index_copy") and last == 2:
        dim, places, values = sample.args
        values = values.flip(dim) if values.dim() else values
        sample = replace(sample, args=(dim, places.flip(0) if places.dim() else places, values))
    return call(function, sample, **extra)


@pytest.mark.parametrize("name", ["scatter", "index_copy", "put", "nn.functional.max_unpool2d"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_last_value_written_to_one_place_is_open(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, written_backwards, f"{name}[float32-{mode}]").count > 10


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("scatter", (0, torch.tensor([1, 1]), torch.tensor([3.0, 4.0])), True),
        ("scatter", (0, torch.tensor([1, 0]), torch.tensor([3.0, 4.0])), False),
        ("scatter", (0, torch.tensor([1, 1]), 3.0), False),
        ("index_copy", (0, torch.tensor([1, 1]), torch.tensor([3.0, 4.0])), True),
        ("put", (torch.tensor([2, -1]), torch.tensor([3.0, 4.0])), True),
        ("put", (torch.tensor([2, -1]), torch.tensor([3.0, 4.0]), True), False),
        ("index_put", ((torch.tensor([2, -1]),), torch.tensor([3.0, 4.0])), True),
        ("index_put", ((torch.tensor([2, -1]),), torch.tensor([3.0, 4.0]), True), False),
        ("index_put", ((torch.tensor([2, -1]),), torch.tensor(3.0)), False),
        ("index_put", ((torch.tensor([2, 0]),), torch.tensor([3.0, 4.0])), False),
        ("gather", (0, torch.tensor([1, 1])), False),
    ],
)
def test_calls_that_write_twice_to_one_place_are_known(name: str, arguments: tuple[Any, ...], expected: bool) -> None:
    info = SimpleNamespace(name=name)

    assert repeated_writes.are_in(info, Call(0, torch.zeros(3), arguments)) is expected


def test_special_values_whose_result_is_open_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def habit(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        if function is torch.digamma:
            return torch.where(sample.input == 0, -torch.inf, result)
        # In place, the input is the result: it was NaN where it still is.
        return result if result is sample.input else torch.where(sample.input.isnan(), torch.nan, result)

    without_forms(monkeypatch)

    for name in ("sign", "sgn", "heaviside", "digamma"):
        assert with_habit(monkeypatch, habit, f"{name}[float32-inference]").count > 0


@pytest.mark.parametrize("declared", [True, False])
def test_subnormal_inputs_are_judged_where_they_are_declared(declared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def flushing(function: Any, sample: Call, **extra: Any) -> Any:
        small = sample.input.abs() < torch.finfo(torch.float32).smallest_normal
        flushed = sample.with_arguments((sample.input * ~small, sample.args, sample.kwargs))
        result = call(function, flushed, **extra)
        return sample.input.copy_(result) if result is flushed.input else result

    without_forms(monkeypatch)
    monkeypatch.setattr(execution, "execute", flushing)
    check = Checker()
    check.subnormals = declared

    with pytest.raises(AssertionError, match=r"special values|tiny numbers") if declared else contextlib.nullcontext():
        cell.run(planned()["operators.log[float32-inference]"], CPU, check)


@pytest.mark.parametrize(
    ("operator", "arguments", "meaningless"),
    [
        (
            "gather",
            (torch.ones(3), 0, torch.tensor([5])),
            True,
        ),  # the index is in the values; the meta function accepts
        ("mm", (torch.ones(2, 3), torch.ones(2, 3)), True),
        ("native_group_norm", (torch.ones(1, 6, 6)[..., ::2], None, None, 1, 6, 3, 2, 0.5), False),
        ("nn.functional.fractional_max_pool2d", (torch.ones(1, 4, 4, dtype=torch.float16), 2, (2, 2)), False),
    ],
)
def test_only_calls_without_a_meaning_have_to_be_refused(
    operator: str, arguments: tuple[Any, ...], meaningless: bool
) -> None:
    sample = Call(0, arguments[0], arguments[1:])

    assert error_inputs.is_meaningless(database.find(operator), sample) is meaningless


# --- PyTorch's own references in Python -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_device_may_refuse_what_the_reference_in_python_refuses(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch._refs.view_copy`` refuses tensors without such a view; PyTorch's CPU copies them."""
    import torch._refs

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        return call(torch._refs.view_copy, sample, **extra)

    check = with_habit(monkeypatch, execute, f"view_copy[float32-{mode}]")

    assert check.count > 10


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_device_may_not_refuse_other_arrangements(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        if not sample.input.is_contiguous():
            raise RuntimeError("contiguous inputs only")
        return call(function, sample, **extra)

    with pytest.raises(RuntimeError, match="contiguous inputs only"):
        with_habit(monkeypatch, execute, f"exp[float32-{mode}]")


# --- devices that queue their work -----------------------------------------------------------------------------------


def test_a_device_that_refuses_late_refuses_within_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """rgpu reports an error when a result is read: the next case was then said to have broken the device."""
    from conformance.suites.workloads import family_loop

    class Queued(torch.Tensor):
        def cpu(self, *_: Any) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("histc is not implemented for Int")

    monkeypatch.setattr(torch, "histc", lambda *_, **__: torch.zeros(2).as_subclass(Queued))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(2))

    assert not family_loop.groups_experts.__wrapped__("late")


# --- random numbers before sums --------------------------------------------------------------------------------------


def sums_in_any_order() -> Callable[..., Any]:
    """Return a device whose floating results differ in the last bits from call to call."""
    generator = torch.Generator().manual_seed(5)

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            signs = torch.randint(-2, 3, leaf.shape, generator=generator)
            moved = leaf * (1 + signs * torch.finfo(leaf.dtype).eps)
            return torch.where(moved.isinf(), leaf, moved)  # the largest number has no larger one

        result = call(function, sample, **extra)
        return result if extra else mapped(result, move)

    return execute


ATTENTION = "nn.functional.scaled_dot_product_attention"


@pytest.mark.parametrize("mode", longer(["inference", "training"]))
@pytest.mark.parametrize("name", longer([ATTENTION, "nn.functional.multi_head_attention_forward"]))
def test_a_sum_behind_the_draw_may_round_otherwise_each_time(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_habit(monkeypatch, sums_in_any_order(), f"{name}[float32-{mode}]")


def test_other_random_numbers_are_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "reseed", lambda seed, device: None)

    with pytest.raises(AssertionError, match="the same seed gave different"):
        run(f"operators.{ATTENTION}[float32-inference]")


def test_a_refused_call_may_have_more_errors_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """On rgpu each step of svd_lowrank refused a wrong dtype, and the next read was called a broken device."""
    from conformance.suites.operators.checks import wrong_calls

    queue = [RuntimeError("dtype"), RuntimeError("dtype")]

    def zeros(*_: Any, **__: Any) -> torch.Tensor:
        if queue:
            raise queue.pop()
        return torch.ones(1)

    monkeypatch.setattr(torch, "zeros", zeros)

    wrong_calls._take_late_errors(torch.device("cpu"))

    assert queue == []


@pytest.mark.parametrize("name", ["nn.functional.softplus", "nn.functional.gelu"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_one_number_may_be_exact_by_chance(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expanded input is one number; where the host rounds it right, the next device still may round it wrong."""
    with_habit(monkeypatch, sums_in_any_order(), f"{name}[float32-{mode}]")


def test_a_device_may_refuse_to_write_one_place_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema marks running_mean and running_var as written, though the call writes neither here."""
    laid = 0

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        nonlocal laid
        for each in sample.args[2:4]:
            if isinstance(each, torch.Tensor):
                laid += not each.is_contiguous()
                assert 0 not in each.stride() or each.numel() < 2, "an argument that may be written is expanded"
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", execute)
    run("operators._native_batch_norm_legit[float32-inference]")

    assert laid


def _dense(call: Any) -> Any:
    return call.run().contiguous()


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        (("as_strided", "transpose.int", "slice.Tensor", "expand"), True),
        (("transpose.int",), False),  # one wrong view excuses nothing
        ((), False),
    ],
)
def test_strides_are_free_on_a_device_whose_tensors_all_appear_contiguous(
    kernels: tuple[str, ...], expected: bool
) -> None:
    device = bench.Bench().device
    layout.appears_contiguous.cache_clear()
    try:
        with overridden(dict.fromkeys((f"aten::{kernel}" for kernel in kernels), _dense), "PrivateUse1"):
            call = Call(0, torch.ones(2, 3, device=device))
            compared = with_equal_strides(call, Call(0, torch.ones(2, 3)))
        assert (compared is None) is expected
    finally:
        layout.appears_contiguous.cache_clear()


@pytest.mark.parametrize("claimed", [True, False])
def test_a_statement_that_calls_what_is_not_claimed_is_left_out(claimed: bool) -> None:
    """What is selected is written by masked_scatter: a device need not have it to select."""
    check = Checker()
    check.claims = lambda *_: claimed
    given = SimpleNamespace(check=check, dtype=torch.float32, info=SimpleNamespace(full_name="masked_select"))

    assert len(list(statements.statements(given))) == claimed


def test_a_device_without_a_module_is_seeded_as_its_accelerator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(seeding, "_under_test", [])
    state.seed_everything(4, SimpleNamespace(manual_seed_all=seeds.append))

    execution.reseed(5, torch.device("xla"))

    assert seeds == [4, 5]


@pytest.mark.parametrize("torch_refuses", [True, False])
def test_functions_on_lists_are_refused_where_pytorch_lists_no_such_device(
    torch_refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that PyTorch does not list is right to refuse; clipped gradients in place of a refusal are wrong."""
    for module in (torch.nn.utils.clip_grad, test_rates)[not torch_refuses :]:
        monkeypatch.setattr(module, "_device_has_foreach_support", lambda _: False)

    verdict = bench.Bench().run("runtime.clipping.norms[2-foreach-0.5]")

    assert (verdict.message == "") is torch_refuses
    assert torch_refuses or "has not refused foreach=True" in verdict.message

"""What operator cells call beyond the database: odd numbers, other defaults, tiny inputs, forms, kernels of backwards.

Each defect shows for these calls alone. What PyTorch leaves open accuses nobody.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.judging.checker import Checker
from conformance.numerics.trees import mapped
from conformance.suites.foreach import functions, test_foreach
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.checks import kernels
from tests.layers import longer

from .test_operators_detect import run
from .test_special_inputs import reads, without_nan, without_negative_zero, without_subnormals

Execute = Callable[..., Any]


def with_narrow_numbers(function: Any, sample: Call, **extra: Any) -> Any:
    """Round each number through bfloat16."""

    def narrow(leaf: Any) -> Any:
        return float(torch.tensor(leaf, dtype=torch.float64).bfloat16()) if type(leaf) is float else leaf

    return call(function, sample.with_arguments((sample.input, *mapped([sample.args, sample.kwargs], narrow))), **extra)


def without(name: str) -> Execute:
    """Return a device that ignores an argument."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        kept = {key: value for key, value in sample.kwargs.items() if key != name}
        return call(function, sample.with_arguments((sample.input, sample.args, kept)), **extra)

    return execute


def only_in(form: Callable[[Any, dict[str, Any]], bool], broken: Execute) -> Execute:
    """Return a device that is broken in one form of the call."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        return (broken if form(function, extra) else call)(function, sample, **extra)

    return execute


def in_place(function: Any, extra: dict[str, Any]) -> bool:
    return getattr(function, "__name__", "") == "addbmm_"


def into(function: Any, extra: dict[str, Any]) -> bool:
    return "out" in extra


def kernel(name: str) -> Callable[[Any, dict[str, Any]], bool]:
    return lambda function, extra: isinstance(function, torch._ops.OpOverload) and name in function._schema.name


def by_out(function: Any, extra: dict[str, Any]) -> bool:
    return isinstance(function, kernels.Into)


def of_no_values(function: Any, sample: Call, **extra: Any) -> Any:
    """Write nothing but zeros."""
    return call(function, sample, **extra).zero_()


def swallowing(function: Any, sample: Call, **extra: Any) -> Any:
    """Return zeros where the call is refused."""
    try:
        return call(function, sample, **extra)
    except (RuntimeError, IndexError):
        return extra.get("out", torch.zeros_like(sample.tensors[0]))


def swallowing_one_dimension_more(function: Any, sample: Call, **extra: Any) -> Any:
    """Return zeros for a refused call with a tensor that has one dimension more than the database's."""
    is_more = any(tensor.dim() > 3 and tensor.shape[0] == 1 for tensor in sample.tensors)
    return (swallowing if is_more else call)(function, sample, **extra)


def swallowing_long_lists(function: Any, sample: Call, **extra: Any) -> Any:
    """Return zeros for a refused call with a list of more numbers than dimensions."""
    lists = [value for value in (*sample.args, *sample.kwargs.values()) if isinstance(value, (list, tuple))]
    is_long = any(len(value) > sample.tensors[0].dim() for value in lists)
    return (swallowing if is_long else call)(function, sample, **extra)


def clamping(function: Any, sample: Call, **extra: Any) -> Any:
    """Clamp an index to the tensor where the call is refused."""
    try:
        return call(function, sample, **extra)
    except (RuntimeError, IndexError):
        clamp = lambda leaf: leaf.clamp(0, 0) if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64 else leaf  # noqa: E731
        return call(function, sample.with_arguments(mapped(sample.arguments, clamp)), **extra)


def _without_expansion(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers from behind the one row that an expanded tensor has."""
    repeats = 0 in tensor.stride() and tensor.numel() > 1 and tensor.is_floating_point()
    return tensor.clone() + torch.arange(tensor.numel()).reshape(tensor.shape) if repeats else tensor


def _without_offset(tensor: torch.Tensor) -> torch.Tensor:
    """Return what the memory holds from its beginning."""
    return tensor.as_strided(tensor.shape, tensor.stride(), 0) if tensor.storage_offset() else tensor


def _times_three(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of no dimensions times three."""
    return tensor * 3 if tensor.dim() == 0 and tensor.is_floating_point() else tensor


def of_operands(change: Callable[[torch.Tensor], torch.Tensor]) -> Execute:
    """Return a device that reads the operands behind the first one by a change."""

    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        read = lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
        args, kwargs = mapped([sample.args, sample.kwargs], read)
        return call(function, sample.with_arguments((sample.input, args, kwargs)), **extra)

    return execute


def with_number(function: Any, extra: dict[str, Any]) -> bool:
    return function is torch.fmod


def lost_for_numbers(function: Any, sample: Call, **extra: Any) -> Any:
    """Lose infinities where the second operand is a number."""
    broken = reads(lambda t: t.nan_to_num(7.0, 7.0, 7.0)) if sample.args and type(sample.args[0]) is float else call
    return broken(function, sample, **extra)


def in_narrow_integers(function: Any, sample: Call, **extra: Any) -> Any:
    """Add up more than 512 integers in 32 bits."""
    found = call(function, sample, **extra)
    return found.to(torch.int32).to(found.dtype) if found.dtype is torch.int64 and sample.input.numel() > 512 else found


def through_float64(function: Any, sample: Call, **extra: Any) -> Any:
    """Compare integers as floating-point numbers."""
    if extra or sample.input.dtype is not torch.int64 or not sample.input.dim():
        return call(function, sample, **extra)
    order = call(function, sample.with_arguments((sample.input.double(), sample.args, sample.kwargs))).indices
    given = [*sample.args, *sample.kwargs.values()]
    dim = given[1] if len(given) > 1 else -1
    return torch.return_types.topk((sample.input.gather(dim, order), order))


def of_unsigned_bytes(function: Any, sample: Call, **extra: Any) -> Any:
    """Read signed bytes as unsigned ones."""
    read = lambda t: t.view(torch.uint8) if isinstance(t, torch.Tensor) and t.dtype is torch.int8 else t  # noqa: E731
    return call(function, sample.with_arguments(mapped(sample.arguments, read)), **extra)


def few_of_an_index(function: Any, sample: Call, **extra: Any) -> Any:
    """Leave out what is written to an index more than 256 times."""
    if True not in sample.kwargs.values() or len(sample.tensors) != 3 or sample.tensors[2].dim() == 0:
        return call(function, sample, **extra)
    (index,), values = sample.args[0], sample.args[1]
    if index.dtype is not torch.int64 or index.numel() <= 256:
        return call(function, sample, **extra)
    return call(function, sample.with_arguments((sample.input, ((index[:256],), values[:256]), sample.kwargs)), **extra)


def unstable(function: Any, sample: Call, **extra: Any) -> Any:
    """Return equal elements of long rows in reverse order."""
    if extra or not sample.input.dim() or sample.input.shape[-1] <= 1024:
        return call(function, sample, **extra)
    found = call(function, sample.with_arguments((sample.input.flip(-1), sample.args, sample.kwargs)), **extra)
    return torch.return_types.sort((found.values, sample.input.shape[-1] - 1 - found.indices))


def with_head_of_queries(function: Any, sample: Call, **extra: Any) -> Any:
    """Scale by the size of the values."""
    query, value = sample.input, sample.args[1]
    if not query.numel() or not value.numel():
        return call(function, sample, **extra)
    scale = (value.shape[-1] / query.shape[-1]) ** 0.5
    return call(function, sample.with_arguments((query / scale, sample.args, sample.kwargs)), **extra)


def in_memory_order(function: Any, sample: Call, **extra: Any) -> Any:
    """Write into a transposed matrix in the order of its memory."""
    if not function.__name__.endswith("_") or sample.input.is_contiguous():
        return call(function, sample, **extra)
    given = sample.input.clone(memory_format=torch.contiguous_format)
    due = call(function, sample.with_arguments((given, sample.args, sample.kwargs)), **extra)
    return sample.input.copy_(due.flip(-1))


@pytest.mark.parametrize(
    ("broken", "cell", "message"),
    longer([
        (with_narrow_numbers, "masked_fill[float32-inference]", "other numbers|negative number|one row of input 0"),
        (with_narrow_numbers, "cdist[float32-inference]", "other numbers"),
        (with_narrow_numbers, "nn.functional.leaky_relu[float32-inference]", "negative_slope="),
        (without("antialias"), "nn.functional.interpolate.bilinear[float32-inference]", "antialias=True"),
        (without("keepdim"), "kthvalue[float32-inference]", "keepdim=True"),
        (without("label_smoothing"), "nn.functional.cross_entropy[float32-inference]", "label_smoothing="),
        (reads(without_negative_zero), "maximum[float32-inference]", "selects elements"),
        (reads(without_subnormals), "nn.functional.interpolate.nearest[float32-inference]", "selects elements"),
        (reads(without_subnormals), "mean[float32-inference]", "results are lost: zero, or infinite"),
        (only_in(in_place, reads(without_nan)), "addbmm[float32-inference]", "in-place variant"),
        (only_in(into, reads(without_nan)), "addr[float32-inference]", "NaN in input .*out= variant"),
        (only_in(kernel("elu_backward"), reads(without_nan)), "nn.functional.elu[float32-training]", "NaN in"),
        (reads(without_nan), "linalg.solve[float32-inference]", "NaN in input 0"),
        (reads(without_nan), "linalg.det[float32-inference]", "NaN in input 0"),
        (only_in(into, reads(without_nan)), "ormqr[float32-inference]", "NaN in input 0, out= variant"),
        (only_in(kernel("_backward"), swallowing), "cdist[float32-training]", "accepted"),
        (only_in(into, swallowing), "isin[float32-inference]", "accepted"),
        (only_in(into, clamping), "index_select[float32-inference]", "beyond the end, out= variant: accepted"),
        (swallowing_one_dimension_more, "bmm[float32-inference]", "with one dimension more: accepted"),
        (swallowing_long_lists, "flip[float32-inference]", "has . numbers: accepted"),
        (reads(without_nan), "trace[float32-inference]", "NaN alone in input 0"),
        (only_in(by_out, of_no_values), "nn.functional.elu[float32-training]", "elu_backward.*, out="),
        (in_narrow_integers, "cumsum[int64-inference]", "integers (times|plus)"),
        (through_float64, "topk[int64-inference]", "integers plus"),
        (of_unsigned_bytes, "eq[float32-inference]", "uint8 and int8|int8 and uint8"),
        (without("dtype"), "sum[float32-inference]", "dtype=torch.float64"),
        (few_of_an_index, "index_put[float32-inference]", "600 equal indices"),
        (unstable, "sort[float32-inference]", "long rows of equal elements"),
        (with_head_of_queries, "nn.functional.scaled_dot_product_attention[float32-inference]", "input 2 longer"),
        (in_memory_order, "masked_scatter[float32-inference]", "in-place variant, inputs non-contiguous"),
        (clamping, "index_fill[float32-inference]", "beyond the end: accepted"),
        (clamping, "take[float32-inference]", "beyond the end: accepted"),
        (
            only_in(into, of_operands(_without_expansion)),
            "fmax[float32-inference]",
            "out= variant, inputs input 1 expanded",
        ),
        (only_in(into, of_operands(_times_three)), "where[float32-inference]", "number of dimensions.* out= variant"),
        (only_in(kernel("elu_backward"), reads(_without_expansion)), "nn.functional.elu[float32-training]", "expanded"),
        (only_in(kernel("elu_backward"), reads(_without_offset)), "nn.functional.elu[float32-training]", "offset"),
        (only_in(with_number, lost_for_numbers), "fmod[float32-inference]", "special values and a number"),
        (only_in(kernel("_fft_c2r"), swallowing), "fft.irfft[float32-training]", "accepted"),
    ], step=4),
)  # fmt: skip
def test_a_defect_of_odd_calls_is_found(
    broken: Execute, cell: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(f"operators.{cell}").count > 10
    monkeypatch.setattr(execution, "execute", broken)

    with pytest.raises(AssertionError, match=message):
        run(f"operators.{cell}")


def without_own_kernels(function: Any, sample: Call, **extra: Any) -> Any:
    """Refuse the overloads of a backward: the device differentiates in another way."""
    if isinstance(function, torch._ops.OpOverload):
        raise NotImplementedError("no such kernel")
    return call(function, sample, **extra)


def in_more_dtypes(function: Any, sample: Call, **extra: Any) -> Any:
    """Compute in float64 what the host refuses in its dtype, and round the result."""
    try:
        return call(function, sample, **extra)
    except NotImplementedError:
        if extra:
            raise
        arguments = mapped(sample.arguments, lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) else leaf)
        return mapped(call(function, sample.with_arguments(arguments)), lambda leaf: leaf.round().to(torch.int64))


def zero_without_sign(function: Any, sample: Call, **extra: Any) -> Any:
    """Give 0 for -0 where the operator has a bound of 0."""
    result = call(function, sample, **extra)
    return result + 0.0 if function is torch.clamp_min and isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize(
    ("habit", "cell"),
    [
        (without_own_kernels, "nn.functional.hardtanh[float32-training]"),
        (without_own_kernels, "nn.functional.pad.reflect[float32-training]"),
        (in_more_dtypes, "cdist[float32-training]"),
        (in_more_dtypes, "nn.functional.logsigmoid[float32-inference]"),
        (zero_without_sign, "nn.functional.relu[float32-inference]"),
    ],
)
def test_what_pytorch_leaves_open_is_right(habit: Execute, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", habit)

    assert run(f"operators.{cell}").count > 10


# --- lists and random numbers -----------------------------------------------------------------------------------------


def on_lists(name: str) -> None:
    function = functions.functions()[name]
    for one in function.calls:
        test_foreach._check(Checker(), function, one, [""], torch.device("cpu"), torch.float32, long=True)


@pytest.mark.parametrize("name", ["div", "clamp_max"])
def test_a_function_on_lists_that_rounds_numbers_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_lists(name)
    right = getattr(torch, f"_foreach_{name}")

    def narrow(leaf: Any) -> Any:
        return float(torch.tensor(leaf, dtype=torch.float64).bfloat16()) if type(leaf) in (int, float) else leaf

    monkeypatch.setattr(torch, f"_foreach_{name}", lambda given, *others: right(given, *mapped(list(others), narrow)))

    with pytest.raises(AssertionError, match="odd number"):
        on_lists(name)


def test_a_tensor_without_dimensions_in_a_list_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_lists("mul")
    right = torch._foreach_mul

    def misread(given: Any, other: Any) -> Any:
        is_number = isinstance(other, list) and isinstance(other[0], torch.Tensor) and all(t.dim() == 0 for t in other)
        return right(given, 1.0 if is_number else other)

    monkeypatch.setattr(torch, "_foreach_mul", misread)

    with pytest.raises(AssertionError, match="tensors without dimensions"):
        on_lists("mul")


def test_a_function_on_lists_that_is_wrong_on_other_threads_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    function, right = functions.functions()["sin"], torch._foreach_sin
    check = functools.partial(
        test_foreach._check_call, Checker(), function, function.calls[0], [""], torch.device("cpu"), torch.float32
    )
    check()
    before: list[Any] = []

    def stale(given: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return right(given)
        before.append(right(given))
        return before[-2:][0]

    monkeypatch.setattr(torch, "_foreach_sin", stale)

    with pytest.raises(AssertionError, match="on another thread"):
        check()


@pytest.mark.parametrize(("name", "part"), [("mul", slice(-1, None)), ("exp", slice(15, None, 16)), ("norm", slice(1))])
def test_a_small_error_in_a_part_of_a_tensor_of_a_list_is_wrong(
    name: str, part: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of a small element, and small beside the largest one."""
    function, right = functions.functions()[name], getattr(torch, f"_foreach_{name}")

    def check() -> None:
        test_foreach._check(Checker(), function, function.calls[0], [""], HOST, torch.float32, long=False)

    check()

    def slightly_wrong(given: Any, *others: Any, **options: Any) -> Any:
        results = right(given, *others, **options)
        results[0].flatten()[part].mul_(1 + 2.6e-6)
        return results

    monkeypatch.setattr(torch, f"_foreach_{name}", slightly_wrong)

    with pytest.raises(AssertionError, match="elements differ"):
        check()


@pytest.mark.parametrize("name", ["exp", "sin", "lgamma"])
def test_a_function_of_a_list_in_16_bits_rounds_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, right = functions.functions()[name], getattr(torch, f"_foreach_{name}")

    def wrong(given: Any, *others: Any, **options: Any) -> Any:
        results = right(given, *others, **options)
        results[0].mul_(1.024)  # three units in the last place: torch.testing permits two
        return results

    monkeypatch.setattr(torch, f"_foreach_{name}", wrong)

    with pytest.raises(AssertionError, match="elements differ"):
        test_foreach._check(Checker(), function, function.calls[0], [""], HOST, torch.bfloat16, long=False)


class Everything:
    """A declaration that claims every cell."""

    def supports(self, cell: Any) -> bool:
        """Return True."""
        return True


HOST = torch.device("cpu")


def test_the_largest_number_behind_many_rows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_lists("max")
    right = torch._foreach_max
    monkeypatch.setattr(torch, "_foreach_max", lambda given: right([t[: 1 << 16] if t.dim() else t for t in given]))

    with pytest.raises(AssertionError, match="_foreach_max"):
        on_lists("max")


@pytest.mark.parametrize(
    ("dtype", "narrow", "said"),
    [
        ("float32", lambda t: t.float().double() if t.dtype is torch.float64 else t, "_foreach_exp"),
        ("float32", lambda t: t % 5 if t.dtype is torch.int64 else t, "_foreach_exp of integers"),
        ("bfloat16", lambda t: t * 1.1 if t.dtype is torch.float16 else t, "_foreach_exp"),
    ],
)
def test_a_function_on_lists_that_is_wrong_in_one_dtype_is_red(
    dtype: str, narrow: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, right = functions.functions()["exp"], torch._foreach_exp

    def check() -> None:
        test_foreach._check_beside(Checker(), Everything(), function, HOST, dtype)
        if dtype == "float32":
            test_foreach._check_alone(Checker(), Everything(), function, HOST)

    check()
    monkeypatch.setattr(torch, "_foreach_exp", lambda given: right([narrow(tensor) for tensor in given]))

    with pytest.raises(AssertionError, match=said):
        check()


def test_a_norm_of_a_list_that_squares_in_16_bits_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    function, right = functions.functions()["norm"], torch._foreach_norm
    check = functools.partial(test_foreach._check_beside, Checker(), Everything(), function, HOST, "bfloat16")
    check()

    def squares(given: Any, **options: Any) -> Any:
        return right(
            [torch.where(t.abs() > 255, torch.inf, t) if t.dtype is torch.float16 else t for t in given], **options
        )

    monkeypatch.setattr(torch, "_foreach_norm", squares)

    with pytest.raises(AssertionError, match="_foreach_norm"):
        check()


def test_products_of_lists_that_are_wrong_on_other_threads_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    function, right = functions.functions()["mul"], torch.ops.aten._foreach_mm
    test_foreach._check_alone(Checker(), Everything(), function, HOST)

    def narrow(left: Any, others: Any) -> Any:
        is_here = threading.current_thread() is threading.main_thread()
        return right(left, others if is_here else [other.contiguous() * 2 for other in others])

    monkeypatch.setattr(torch.ops.aten, "_foreach_mm", narrow)

    with pytest.raises(AssertionError, match="_foreach_mm"):
        test_foreach._check_alone(Checker(), Everything(), function, HOST)


def test_a_draw_that_changes_its_input_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(function: Any, sample: Call, **extra: Any) -> Any:
        result = call(function, sample, **extra)
        with torch.no_grad():
            sample.tensors[0].view(-1)[-1:].mul_(0.5)
        return result

    cell = "operators.bernoulli[float32-inference]"
    assert run(cell).count > 0
    monkeypatch.setattr(execution, "execute", execute)

    with pytest.raises(AssertionError, match="input 0 was changed"):
        run(cell)


def test_a_solver_may_call_a_matrix_with_nan_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(function: Any, sample: Call, **extra: Any) -> Any:
        if sample.tensors[0].isnan().any():
            raise torch.linalg.LinAlgError("the matrix is singular")
        return call(function, sample, **extra)

    monkeypatch.setattr(execution, "execute", refusing)

    check = run("operators.linalg.solve[float32-inference]")

    assert check.metrics["special_inputs"] == "refused: NaN in input 0"

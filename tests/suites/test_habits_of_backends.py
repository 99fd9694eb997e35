"""Habits of a backend that somebody else wrote, for which right results were judged wrong."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

from conformance.judging.checker import Checker
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call

from .test_operators_detect import run


def with_habit(monkeypatch: pytest.MonkeyPatch, habit: Any, cell: str) -> Checker:
    """Run the cell on a device whose operator calls go through ``habit``."""
    monkeypatch.setattr(execution, "execute", habit)
    return run(f"operators.{cell}")


def other_signs(function: Any, sample: Call, **extra: Any) -> Any:
    """Give each pair of singular vectors, or each eigenvector, the other sign."""
    found = call(function, sample, **extra)
    if extra or not isinstance(found, tuple):
        return found
    vectors = max(part.dim() for part in found)
    return type(found)([-part if part.dim() == vectors else part for part in found])


@pytest.mark.parametrize("cell", ["svd[float32-training]", "linalg.eigh[float32-training]"])
def test_vectors_in_a_batch_may_have_other_signs(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, other_signs, cell).count > 10


def refuses_to_write(function: Any, sample: Call, **extra: Any) -> Any:
    """Refuse to write running means whose elements share their memory, or that are lazily negated."""
    for tensor in sample.tensors[1:]:
        if not tensor.requires_grad and (tensor.is_neg() or (tensor.numel() > 1 and 0 in tensor.stride())):
            raise RuntimeError("unsupported operation: more than one element refers to a single memory location")
    return call(function, sample, **extra)


@pytest.mark.parametrize(
    "cell", ["nn.functional.instance_norm[float32-training]", "_batch_norm_with_update[float32-training]"]
)
def test_what_a_call_writes_is_dense(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, refuses_to_write, cell).count > 10


def normalises_first(function: Any, sample: Call, **extra: Any) -> Any:
    """Compute the cosine from normalised vectors, whose gradients are rounded otherwise."""
    if function is not functional.cosine_embedding_loss:
        return call(function, sample, **extra)
    first, (second, target), given = sample.input, sample.args, dict(sample.kwargs)
    cosine = (functional.normalize(first, dim=-1) * functional.normalize(second, dim=-1)).sum(-1)
    beyond = (cosine - given.get("margin", 0.0)).clamp_min(0)
    loss = torch.where(target == 1, 1 - cosine, torch.where(target == -1, beyond, 0.0))
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[given.get("reduction", "mean")]()


def test_gradients_of_a_loss_with_labels_may_have_the_roundings_of_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that is changed a little is none: all gradients were zero, and so was what they may be rounded by."""
    assert with_habit(monkeypatch, normalises_first, "nn.functional.cosine_embedding_loss[float32-training]").count > 10


def adds_in_order(function: Any, sample: Call, **extra: Any) -> Any:
    """Add the squares of a loss in 64 lanes, each of which adds one number after the other, as a shader does."""
    if extra or not isinstance(sample.input, torch.Tensor) or sample.input.numel() < 1000:
        return call(function, sample, **extra)
    squares = ((sample.input - sample.args[0]) ** 2).detach().reshape(-1)
    lanes = functional.pad(squares, (0, -len(squares) % 64)).reshape(-1, 64).numpy()
    total = torch.from_numpy(numpy.cumsum(lanes, axis=0, dtype=numpy.float32))[-1].sum()
    return {"sum": total, "mean": total / squares.numel()}.get(sample.kwargs.get("reduction", "mean"), squares)


def test_a_sum_may_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partial sums grow, and each of them is rounded: no tree of sums has such an error."""
    ones = torch.full((1 << 20,), 1.1)
    error = adds_in_order(None, Call(0, ones, (torch.zeros(1 << 20),))).double() - ones[0].double() ** 2
    assert abs(error) > 8 * torch.finfo(torch.float32).eps

    assert with_habit(monkeypatch, adds_in_order, "nn.functional.mse_loss[float32-inference]").count > 10


def solves_each_column(function: Any, sample: Call, **extra: Any) -> Any:
    """Solve each right-hand side alone: infinities in one reach no other."""
    if function is not torch.linalg.lstsq or extra or not sample.args or sample.args[0].dim() < 2:
        return call(function, sample, **extra)
    found, right = call(function, sample), sample.args[0]
    if right.isfinite().all() or right.dim() != sample.input.dim():
        return found
    columns = [call(function, sample.with_argument(0, column)).solution for column in right.split(1, dim=-1)]
    return type(found)([torch.cat(columns, -1), *found[1:]])


def test_each_right_hand_side_may_be_solved_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, solves_each_column, "linalg.lstsq[float32-inference]").count > 10


def gives_the_limit(function: Any, sample: Call, **extra: Any) -> Any:
    """Compute the gradient of soft_margin_loss by a sigmoid, which has a limit at infinity."""
    if str(function) != "aten.soft_margin_loss_backward.default" or extra:
        return call(function, sample, **extra)
    gradient, (x, target, reduction) = sample.input, sample.args
    factor = 1 / x.numel() if reduction == 1 else 1
    return -target * torch.sigmoid(-target * x) * factor * gradient


def test_a_limit_at_infinity_is_right_where_the_host_has_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, gives_the_limit, "nn.functional.soft_margin_loss[float32-training]").count > 10


def takes_the_other_side(function: Any, sample: Call, **extra: Any) -> Any:
    """Compare with ``>`` where the host compares with ``<=``: for NaN, the other side of the kink."""
    if str(function) != "aten.threshold_backward.default" or extra:
        return call(function, sample, **extra)
    gradient, (x, threshold) = sample.input, sample.args
    return torch.where(x > threshold, gradient, torch.zeros_like(gradient))


def test_either_side_of_a_kink_is_right_for_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, takes_the_other_side, "nn.functional.relu[float32-training]").count > 10


def takes_all_indices(function: Any, sample: Call, **extra: Any) -> Any:
    """Let the last bag end where the indices end. PyTorch asks for such offsets, and its CPU checks none."""
    if sample.kwargs.get("include_last_offset"):
        indices, *offsets = (tensor for tensor in sample.tensors if not tensor.is_floating_point())
        assert [int(one[-1]) for one in offsets] == [len(indices)], "the last offset is not the number of indices"
    return call(function, sample, **extra)


def test_the_last_offset_of_bags_is_the_number_of_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, takes_all_indices, "nn.functional.embedding_bag[float32-inference]").count > 10


def writes_from_the_end(function: Any, sample: Call, **extra: Any) -> Any:
    """Write the elements of a view one by one, the last one first."""
    found = call(function, sample, **extra)
    if function is not torch.as_strided_scatter or extra or not sample.input.is_contiguous():
        return found
    base, (source, size, stride), offset = sample.input.clone(), sample.args[:3], sample.kwargs.get("storage_offset", 0)
    memory = base.view(-1)
    places = torch.arange(len(memory)).as_strided(size, stride, offset).reshape(-1)
    for place, value in reversed(list(zip(places.tolist(), source.reshape(-1), strict=True))):
        memory[place] = value
    return base


def test_of_two_values_for_one_place_in_a_view_either_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_habit(monkeypatch, writes_from_the_end, "as_strided_scatter[float32-inference]").count > 10


def without_float64(function: Any, sample: Call, **extra: Any) -> Any:
    """Refuse to compute in float64."""
    if torch.float64 in (*sample.args, *sample.kwargs.values()):
        raise RuntimeError("Failed x.dtype() == float_data")
    return call(function, sample, **extra)


@pytest.mark.parametrize("cell", ["log_softmax.with_dtype[float32-inference]", "softmax.with_dtype[float32-training]"])
def test_a_dtype_that_is_not_declared_may_be_refused(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", without_float64)
    # The case is due, so that it asks for a dtype that is declared.
    assert run(f"operators.{cell}", dtypes=frozenset({"float32"})).count > 10
    with pytest.raises(RuntimeError, match="float_data"):
        run(f"operators.{cell}", dtypes=frozenset({"float32", "float64"}))


def keeps_the_size(function: Any, sample: Call, **extra: Any) -> Any:
    """Write into an output of a wrong size from its start, and leave its size as it is."""
    if (out := extra.get("out")) is None:
        return call(function, sample, **extra)
    result = call(function, sample)
    out.view(-1)[: result.numel()].copy_(result.reshape(-1)[: out.numel()])
    return out


def test_true_over_true_is_not_taken_for_nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"wrong-size outputs: shape is"):
        with_habit(monkeypatch, keeps_the_size, "any[float32-inference]")

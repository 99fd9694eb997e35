"""Subnormal numbers and negative zeros in the inputs of every operator.

Budgets allow one smallest normal number, so a result that is flushed to zero shows in no comparison of values. Two
things show it: an operator that selects elements keeps their bits, and a result of many steps is not lost as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import leaves
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import call, perform
from conformance.suites.operators.judge.aspects import Aspect
from conformance.suites.operators.judge.cells import Cell

from . import forms

#: Dtypes in which subnormal numbers have digits enough for formulas of some steps.
_DTYPES = (torch.float32, torch.float64)
#: Steps of the smallest subnormal number above which a result is more than roundings.
_STEPS = 16
#: Elements of a sample below which nothing shows that the operator selects.
_FEW = 3
#: Tensors of a sample that are changed in turn.
_TENSORS = 6


def check(cell: Cell, samples: list[Call]) -> None:
    """Compare results for subnormal numbers and negative zeros with the host's."""
    if not samples:
        return
    if all(_selects(cell.info, sample) for sample in samples) and samples[0].elements > _FEW:
        for sample in samples:
            for changed in _with_tiny(sample, subnormals=cell.check.subnormals):
                _compare_bits(cell, changed)
    check_losses(cell, samples[0], range(_TENSORS))


def check_losses(cell: Cell, sample: Call, numbers: Collection[int]) -> None:
    """Check that results are not lost for subnormal numbers in each tensor of some, given by their positions."""
    if cell.check.subnormals:
        for number, changed in _scaled(sample):
            if number in numbers:
                _compare_losses(cell, changed)


def outputs(info: Any, run: Callable[..., Any], given: Call) -> list[torch.Tensor] | None:
    """Return the floating-point outputs; None where the call is refused or draws random numbers."""
    state = torch.get_rng_state()
    try:
        made = leaves(perform(run, info, given))
    except Exception:  # such values are outside of the operator's domain
        return None
    if not torch.equal(state, torch.get_rng_state()):
        return None
    made = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())]
    if any(leaf.layout is not torch.strided for leaf in made):
        return None
    return [torch.view_as_real(plain(leaf)) if leaf.is_complex() else leaf for leaf in made]


def _of_values(sample: Call) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the dense floating-point inputs that are on the device, each with its number."""
    for number, tensor in enumerate(sample.tensors[:_TENSORS]):
        if (
            tensor.dtype in _DTYPES
            and tensor.layout is torch.strided
            and tensor.numel()
            and number not in sample.on_host
        ):
            yield number, tensor.detach()


def _with(sample: Call, number: int, new: torch.Tensor) -> Call:
    """Return the call with a new tensor for the input with this number."""
    return sample.with_tensor(sample.tensors[number], new)


# --- operators that select elements -----------------------------------------------------------------------------------


def _selects(info: Any, sample: Call) -> bool:
    """Return whether all elements of the results are elements of the inputs, none of which is zero."""
    given = [tensor for _, tensor in _of_values(sample)]
    if not given or any((tensor == 0).any() for tensor in given):
        return False
    made = outputs(info, call, sample.on(HOST))
    return made is not None and bool(made) and _are_among(made, given)


def _are_among(made: list[torch.Tensor], given: list[torch.Tensor]) -> bool:
    """Return whether the bits of all elements are bits of some element that was given."""
    if any(leaf.dtype is not given[0].dtype for leaf in (*made, *given)):
        return False
    kind = torch.int32 if given[0].dtype is torch.float32 else torch.int64
    known = torch.cat([_flat(tensor).view(kind) for tensor in given])
    return all(bool(torch.isin(_flat(leaf).view(kind), known).all()) for leaf in made)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of the tensor as a vector."""
    return plain(tensor).clone(memory_format=torch.contiguous_format).reshape(-1)


def _with_tiny(sample: Call, *, subnormals: bool) -> Iterator[Call]:
    """Yield a call for each input, in which tiny numbers and negative zeros replace some of its elements."""
    for number, tensor in _of_values(sample):
        limit = torch.finfo(tensor.dtype)
        tiny = limit.smallest_normal * (limit.eps * 3 if subnormals else 1)
        flat = _flat(tensor)
        # Between -0 and a bound of 0, any choice is right.
        values = (tiny, -tiny) if _has_zero(sample) else (tiny, -0.0, -tiny)
        for order, value in enumerate(values):
            flat[order * 2 :: len(values) * 2] = value
        changed = _with(sample, number, flat.reshape(tensor.shape))
        yield changed.named(change=f"negative zeros among tiny numbers in input {number}")


def _has_zero(sample: Call) -> bool:
    """Return whether an argument is the number 0, as a bound may be."""
    return any(type(leaf) in (int, float) and leaf == 0 for leaf in leaves([sample.args, sample.kwargs]))


def _compare_bits(cell: Cell, sample: Call) -> None:
    """Compare the bits of the device's results, if the operator only selects among elements."""
    due = outputs(cell.info, call, sample.on(HOST))
    # Where the host itself returns other bits, it did more than to select.
    if due is None or not _are_among(due, [tensor for _, tensor in _of_values(sample)]):
        return
    for form, found in in_forms(cell, sample, due):
        for actual, wanted in zip(found, due, strict=False):
            if actual.shape == wanted.shape and actual.dtype is wanted.dtype:
                same = same_bits(plain(actual), plain(wanted))
                cell.judge.claim(
                    form, same, "the operator selects elements, and bits of some have changed", aspect=Aspect.BITS
                )


def in_forms(cell: Cell, sample: Call, due: list[torch.Tensor]) -> Iterator[tuple[Call, list[torch.Tensor]]]:
    """Yield the call, and each other form of it that the host takes, with the device's outputs."""
    yield sample, outputs(cell.info, execution.execute, cell.on(sample)) or []
    for form in forms.others(cell.info, sample, due[0] if len(due) == 1 else tuple(due)):
        if outputs(cell.info, call, form.on(HOST)) is not None:
            yield form, outputs(cell.info, execution.execute, cell.on(form)) or []


# --- results that are lost as a whole ---------------------------------------------------------------------------------


def _scaled(sample: Call) -> Iterator[tuple[int, Call]]:
    """Yield the sample with subnormal numbers in each input in turn, also beside zeros in each other one.

    Beside an ordinary summand, a lost one does not show.
    """
    values = list(_of_values(sample))
    for number, tensor in values:
        largest = tensor.nan_to_num(0.0, 0.0, 0.0).abs().max()
        if not largest > 0:
            continue
        name = f"tiny numbers in input {number}"
        tiny = _with(sample, number, tensor / largest * (torch.finfo(tensor.dtype).smallest_normal / 2))
        yield number, tiny.named(change=name)
        for other, summand in values:
            if other != number:
                changed = _with(tiny, other, torch.zeros_like(summand))
                yield number, changed.named(change=f"{name}, zeros in input {other}")


def _compare_losses(cell: Cell, sample: Call) -> None:
    """Check that no result is lost, zero or infinite, which is a number both on the host and in float64."""
    due, exact = outputs(cell.info, call, sample.on(HOST)), outputs(cell.info, call, sample.wide())
    if not due or exact is None or len(due) != len(exact):
        return
    limits = [torch.finfo(leaf.dtype) for leaf in due]
    least = [limit.smallest_normal * limit.eps * _STEPS for limit in limits]
    if not any(bool((leaf.abs() >= bound).any()) for leaf, bound in zip(due, least, strict=True)):
        return
    for form, found in in_forms(cell, sample, due):
        for actual, wanted, wide, bound in zip(found, due, exact, least, strict=False):
            if actual.shape == wanted.shape == wide.shape:
                is_there = (wanted.abs() >= bound) & (wide.abs() >= bound)
                lost = (plain(actual) == 0) & plain(is_there)
                if cell.op_class is not OpClass.ITERATIVE:
                    # A solver may multiply by the reciprocal of a pivot, which overflows before the quotient does.
                    lost |= plain(actual).isinf() & plain(wanted.isfinite() & wide.isfinite())
                said = f"{int(lost.sum())} results are lost: zero, or infinite"
                cell.judge.claim(form, not lost.any(), said, aspect=Aspect.LOST)

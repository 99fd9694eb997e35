"""Direct calls of every overload behind an operator, in the deep tier.

The host computes many samples, forward and backward, under a dispatch mode. It shows the overloads that PyTorch calls,
with their arguments. The device then gets calls of each overload with each kind of arguments: the same ones, in other
arrangements of memory, with special values, with other numbers, and some that do not fit. A device that has other
kernels refuses the plain call and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import leaves
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, settled
from conformance.suites.operators.calls.facts import argument_facts, facts
from conformance.suites.operators.inputs import large, settings
from conformance.suites.operators.inputs.comparing import check_supported
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.judge.cells import Cell

from . import kernels

#: Calls of one overload, each with other kinds of arguments.
_CALLS = 6
#: Makes a number that bfloat16 does not hold, and float32 does.
_ODD = 0.13287353515625


@check(Mode.INFERENCE, stage=Stage.REFUSALS, deep=True, values=False)
@check(Mode.TRAINING, deep=True)
def direct_calls(cell: Cell) -> None:
    """Compare direct calls of the overloads behind some samples with the host's."""
    if cell.op_class is OpClass.ITERATIVE:
        return
    loose = cell.of_class(OpClass.CONTRACTION)
    numbers: dict[Any, int] = {}
    found = kernels.calls(cell, cell.samples, kernels.computes_values, _kinds)
    for order, (function, sample) in enumerate(found):
        numbers[function] = numbers.get(function, 0) + 1
        if numbers[function] > _CALLS:
            continue
        named = replace(sample, number=kernels.NUMBER + order, source=str(function))
        kernels.check_call(loose, function, named)
        _check_arguments(loose, function, named)
        if numbers[function] == 1:
            _check_large(loose, function, named)


def _check_large(cell: Cell, function: Any, sample: Call) -> None:
    """Compare a large call of an overload that checks its arguments, or computes each element alone."""
    dtype = next((tensor.dtype for tensor in sample.tensors), None)
    if dtype is not torch.float32 or not kernels.fits_any_shape(function, sample):
        return
    cell = cell.of_kernel(kernels.Kernel(cell.info, function))
    for grown in large.grown(cell.info, [sample], dtype, cell.work.large)[:1]:
        check_supported(cell, grown, "kernels", f"refused, large: {function}", kernels.oracle_of(function, grown))


def _kinds(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what makes two calls alike: dtypes, dimensions and layouts of tensors, and whether a number is set."""
    return tuple(_kind(leaf) for leaf in leaves(list(arguments)))


def _kind(leaf: Any) -> Any:
    """Return what tells kinds of arguments apart: of a tensor its dtype, dimensions and contiguity."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, min(leaf.dim(), 3), leaf.is_contiguous()
    return leaf if isinstance(leaf, bool | str | None) else type(leaf).__name__


def _check_arguments(cell: Cell, function: Any, sample: Call) -> None:
    """Compare calls with other values of the arguments that are no tensors, where the host computes them."""
    if kernels.is_private(function):
        return  # PyTorch alone calls it, and it does not check its arguments
    if facts(cell.info.name).unchecked or facts(kernels.name_of(function)).unchecked:
        return
    cell = cell.of_kernel(kernels.Kernel(cell.info, function))
    into = kernels.with_out(function)
    for other in _with_arguments(function, sample):
        host, device = other.on(HOST), cell.on(other)
        if not settings.computes(cell, other):
            continue
        found = settled(attempt(execution.execute, cell.info, device))
        if found.error is not None:
            cell.check.metric("kernels", f"refused, {other.change}: {function}")
            continue
        pairs = (found.value, device), (call(function, host), host)
        cell.judge.outcome(other, *pairs, kernels.oracle_of(function, other))
        if into is not None:
            kernels.check_into(cell, other, into, pairs[1][0])


def _with_arguments(function: Any, sample: Call) -> Iterator[Call]:
    """Yield the call with one argument that is no tensor set to something else.

    A flag keeps its value where a tensor is left out or empty: for another flag, kernels read it and do not check.
    """
    arguments = function._schema.arguments[1:]
    lacks_tensor = any(
        given is None if not isinstance(given, torch.Tensor) else not given.numel()
        for argument, given in _given(arguments, sample)
        if "Tensor" in str(argument.type.annotation_str)
    )
    values = [given for _, given in _given(arguments, sample)]
    for place, (argument, given) in enumerate(_given(arguments, sample)):
        if argument_facts(argument.name).kept:
            continue
        # The arguments before it get their defaults.
        filled = replace(sample, args=(*sample.args, *values[len(sample.args) : place + 1]))
        key: int | str = argument.name if argument.kwarg_only else place
        if type(given) is bool and lacks_tensor:
            continue
        if argument_facts(argument.name).coded and type(given) is int:
            others = [(given + step) % 3 for step in (1, 2)]
        else:
            others = list(_others(given, str(argument.type.annotation_str)))
        for value in others:
            other = (sample if argument.kwarg_only else filled).with_argument(key, value)
            yield other.named(change=f"{argument.name}={value}")


def _given(arguments: Sequence[Any], sample: Call) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments behind the first one, with their values or defaults."""
    for place, argument in enumerate(arguments):
        if argument.kwarg_only:
            yield argument, sample.kwargs.get(argument.name, argument.default_value)
        else:
            yield argument, sample.args[place] if place < len(sample.args) else argument.default_value


def _others(given: Any, kind: str) -> Iterator[Any]:
    """Yield other values for an argument of a kernel; ``kind`` is its type in the schema."""
    if isinstance(given, torch.Tensor):
        return
    if type(given) is bool:
        yield not given
    elif type(given) is int and "int" in kind:
        yield from (value for value in (given + 1, given - 1, 0) if value != given)
    elif type(given) in (int, float):
        yield given * 1.5 + _ODD
    elif isinstance(given, (list, tuple)) and given and all(type(item) is int for item in given):
        yield [item + 1 for item in given]
        yield list(reversed(given))
    else:
        yield from settings.others(given, kind)

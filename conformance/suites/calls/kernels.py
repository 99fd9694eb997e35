"""What a schema and kernels.toml say of one of PyTorch's kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from conformance.numerics.budgets import OpClass, class_of_function, load_table
from conformance.numerics.trees import tensors

T = TypeVar("T")


@functools.cache
def named(what: str) -> frozenset[str]:
    """Return a list of kernels.toml."""
    return frozenset(load_table(__file__, "kernels.toml")[what])


def base_name(function: Any) -> str:
    """Return the name of an overload without namespace and overload: ``add`` of ``aten.add.Tensor``."""
    return str(function.overloadpacket.__name__)


def per_kernel(compute: Callable[[Any], T]) -> Callable[[Any], T]:
    """Compute a fact of a kernel once. The hash of PyTorch's overloads takes longer than most facts."""
    known: dict[int, tuple[Any, T]] = {}

    @functools.wraps(compute)
    def fact(func: Any) -> T:
        found = known.get(id(func))
        if found is None:
            found = known[id(func)] = (func, compute(func))  # it is kept, so that no other one gets its id
        return found[1]

    return fact


@per_kernel
def written_of(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and the names of the arguments that a kernel writes."""
    unsaid = load_table(__file__, "kernels.toml")["writes"].get(base_name(func), ())
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.name in unsaid or (argument.alias_info is not None and argument.alias_info.is_write)
    )


def outputs_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """Return the tensors that a call has written, in the order of its schema, and then those that it has made."""
    written: list[torch.Tensor] = []
    for position, name in written_of(func):
        written += tensors(args[position] if position < len(args) else kwargs.get(name))
    if not written:
        return tensors(result)
    known = {id(tensor) for tensor in written}
    return written + [tensor for tensor in tensors(result) if id(tensor) not in known]


def bound(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by their names, defaults included."""
    found = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def is_pointwise(function: Any) -> bool:
    """Return whether each element of a result depends on one element of each input."""
    return torch.Tag.pointwise in function.tags or base_name(function).startswith("_foreach_")


def class_of(function: Any) -> OpClass:
    """Return the error-budget class of one of PyTorch's kernels."""
    name = base_name(function)
    for op_class in (OpClass.REDUCTION, OpClass.ELEMENTWISE, OpClass.ITERATIVE):
        if name in named(op_class.value):
            return op_class
    plain_name = name.removeprefix("_foreach_").removesuffix("_")
    if known := class_of_function(plain_name):
        return known
    if is_pointwise(function) and not name.endswith(("_backward", "_backward_data")):
        return OpClass.TRANSCENDENTAL
    return OpClass.CONTRACTION

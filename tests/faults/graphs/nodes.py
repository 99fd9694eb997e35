"""What is known of a node of a graph, and what can be wrong with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from conformance.numerics.trees import leaves, tensors
from tests.faults.inputs import in_order

#: A kind of effect, and its parameter.
Effect = tuple[str, str]
#: Powers of two that stand for the groups of threads of kernels, and for the numbers that one kernel adds up.
_POWERS: Final = (6, 8, 10, 12)
#: Functions that choose one of equal numbers: the first one, where they say so.
_CHOOSING: Final = ("argmax", "argmin", "max.dim", "min.dim")
#: Dtypes of half the size, through which numbers may go.
_NARROW: Final = {torch.float64: torch.float32, torch.float32: torch.bfloat16, torch.int64: torch.int32}
#: Functions with places among their arguments.
_PLACED: Final = ("index.Tensor", "index_put", "gather", "embedding", "scatter", "index_select", "index_add")


@dataclass(frozen=True)
class Seen:
    """A node: its function, facts about it, and the effects that a fault may have on it."""

    target: str
    facts: frozenset[str]
    effects: frozenset[Effect]


def seen(node: Node, *, is_backward: bool) -> Seen | None:
    """Return what is known of a node that makes tensors; None for another one."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    results = tensors(node.meta.get("val"))
    if not results:
        return None
    operands = [(place, each) for place, each in enumerate(_operands(node)) if tensors(each.meta.get("val"))]
    return Seen(
        name_of(node),
        frozenset(_facts(node, operands, results, is_backward=is_backward)),
        frozenset(_effects(node, operands, results)),
    )


def name_of(node: Node) -> str:
    """Return the function of a node, such as ``aten.sum.dim_IntList``."""
    return str(node.target)


def _operands(node: Node) -> list[Node]:
    return [each for each in leaves((node.args, node.kwargs)) if isinstance(each, Node)]


def _facts(
    node: Node, operands: Sequence[tuple[int, Node]], results: Sequence[torch.Tensor], *, is_backward: bool
) -> Iterator[str]:
    yield from _facts_of_sizes(results[0], [tensors(each.meta["val"])[0] for _, each in operands])
    yield from _facts_of_operands(operands, results[0].dtype)
    users = list(node.users)
    yield from (f"result into {name_of(user)}" for user in users if user.op == "call_function")
    first = next(each for each in node.graph.nodes if each.target is node.target)
    facts = {
        "in a backward pass": is_backward,
        "one tensor twice": len({each for _, each in operands}) < len(operands),
        "a number beside tensors": any(type(each) in (int, float) for each in node.args[1:]),
        "not the first one of its kind": first is not node,
        "result returned": any(user.op == "output" for user in users),
        "several readers": len(users) > 1,
    }
    yield from (fact for fact, holds in facts.items() if holds)


def _facts_of_sizes(first: torch.Tensor, given: Sequence[torch.Tensor]) -> Iterator[str]:
    yield f"dtype {_word(first.dtype)}"
    shape = _shape(first)
    sizes = [size for each in (first, *given) for size in _shape(each)]
    facts = {
        "no dimensions": not shape,
        "four dimensions or more": len(shape) > 3,
        "odd number of elements": math.prod(shape) % 2 == 1 and math.prod(shape) > 1,
        "axis of one": 1 in shape,
        "sizes that change": any(not isinstance(size, int) for size in first.shape),
        **{f"axis beyond {1 << power}": max(sizes, default=0) > 1 << power for power in _POWERS},
    }
    yield from (fact for fact, holds in facts.items() if holds)


def _facts_of_operands(operands: Sequence[tuple[int, Node]], dtype: torch.dtype) -> Iterator[str]:
    for place, each in operands:
        value = tensors(each.meta["val"])[0]
        if value.dtype != dtype:
            yield f"operand {place} of {_word(value.dtype)}"
        yield f"operand {place} is an input" if each.op == "placeholder" else f"operand {place} from {name_of(each)}"
        if layout := _layout(value):
            yield f"operand {place} {layout}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(value: torch.Tensor) -> list[int]:
    """Return the sizes of a tensor; those that change have their size in the first call."""
    return [_number(size) for size in value.shape]


def _number(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 0)


def _layout(value: torch.Tensor) -> str:
    shape, step = _shape(value), [_number(each) for each in value.stride()]
    due = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    if all(size == 1 or one == two for size, one, two in zip(shape, step, due, strict=True)) or 0 in shape:
        return ""
    if any(size > 1 and not each for size, each in zip(shape, step, strict=True)):
        return "expanded"
    dense = math.prod(shape) == 1 + sum((size - 1) * each for size, each in zip(shape, step, strict=True))
    return "permuted" if dense else "with gaps"


def _effects(node: Node, operands: Sequence[tuple[int, Node]], results: Sequence[torch.Tensor]) -> Iterator[Effect]:
    yield from _effects_on_the_result(results[0])
    if len(results) > 1:
        yield "results exchanged", ""
    yield from _effects_on_operands(operands)
    yield from (("argument ignored", each) for each in _not_default(node))
    if any(f".{each}" in name_of(node) for each in _CHOOSING):
        yield "last of equals", ""
    if any(f".{each}" in name_of(node) for each in _PLACED):
        yield "negative place", ""
    yield "stale", ""


def _effects_on_the_result(first: torch.Tensor) -> Iterator[Effect]:
    shape = _shape(first)
    if math.prod(shape) > 1:
        yield "last element", ""
    if len(shape) > 1 and shape[0] > 1:
        yield "last row", ""
    yield from (("tail", str(1 << power)) for power in _POWERS if max(shape, default=0) > 1 << power)
    yield "another value", ""
    if first.is_floating_point():
        yield from (("special value lost", each) for each in ("nan", "inf", "-0.0"))
    if first.dtype in _NARROW:
        yield "result narrow", ""


def _effects_on_operands(operands: Sequence[tuple[int, Node]]) -> Iterator[Effect]:
    known = [(place, each, tensors(each.meta["val"])[0]) for place, each in operands]
    for place, _, value in known:
        if _layout(value) in ("permuted", "with gaps"):
            yield "strides ignored", str(place)
        if value.dtype in _NARROW:
            yield "operand narrow", str(place)
    for (place, one, value), (other, two, next_value) in itertools.pairwise(known):
        if one is not two and (_shape(value), value.dtype) == (_shape(next_value), next_value.dtype):
            yield "operands exchanged", f"{place} {other}"


def _not_default(node: Node) -> Iterator[str]:
    schema = node.target._schema  # type: ignore[union-attr]
    for place, argument in enumerate(schema.arguments):
        if argument.has_default_value() and argument.default_value is not None:
            given = (
                node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            )
            if not isinstance(given, Node) and leaves(given) != leaves(argument.default_value):
                yield argument.name


class Broken:
    """A function of a node with an effect. A stale one gives what it gave in its first call of the same shapes."""

    def __init__(self, effect: Effect) -> None:
        self._effect, self._kept = effect, {}
        self.count = 0

    def __call__(self, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.count += 1
        kind, detail = self._effect
        args, kwargs = self._given(target, args, kwargs)
        found = target(*args, **kwargs)
        if kind == "stale":
            first = self._kept.setdefault(node, _copies(found))
            return first if _forms(first) == _forms(found) else found
        if kind == "results exchanged":
            return _exchanged(found)
        if kind == "last of equals" and isinstance(found, (tuple, list)):
            return type(found)([found[0], _last_of_equals(found[1], args)])
        return _over_first(found, lambda tensor: _spoiled(kind, detail, tensor, args))

    def _given(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind, detail = self._effect
        if kind == "argument ignored":
            for place, argument in enumerate(target._schema.arguments):
                if argument.name == detail:
                    if place < len(args):
                        args = (*args[:place], argument.default_value, *args[place + 1 :])
                    kwargs = {key: value for key, value in kwargs.items() if key != detail}
        elif kind == "operands exchanged":
            one, two = map(int, detail.split())
            given = tensors((args, kwargs))
            args, kwargs = _replaced((args, kwargs), {one: given[two], two: given[one]})
        elif kind in ("strides ignored", "operand narrow"):
            change = in_order if kind == "strides ignored" else _narrow
            args, kwargs = _replaced((args, kwargs), {int(detail): change(tensors((args, kwargs))[int(detail)])})
        elif kind == "negative place":
            places = {
                number: each.clamp(min=0)
                for number, each in enumerate(tensors((args, kwargs)))
                if each.dtype in (torch.int64, torch.int32) and number
            }
            args, kwargs = _replaced((args, kwargs), places)
        return args, kwargs


def _replaced(value: Any, others: dict[int, torch.Tensor]) -> Any:
    """Return arguments with others in the place of tensors, by the numbers of these."""
    numbers = itertools.count()
    return over_all(value, lambda tensor: others.get(next(numbers), tensor))


def over_all(found: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a structure with ``change`` applied to all of its tensors."""
    return map_aggregate(found, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers that went through a dtype of half the size."""
    return tensor.to(_NARROW.get(tensor.dtype, tensor.dtype)).to(tensor.dtype)


def _copies(found: Any) -> Any:
    return over_all(found, torch.clone)


def _forms(found: Any) -> Any:
    return [(each.shape, each.dtype) for each in tensors(found)]


def _exchanged(found: Any) -> Any:
    """Return results of which the first two of one shape are exchanged."""
    parts = list(found)
    for number, (one, two) in enumerate(itertools.pairwise(parts)):
        if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and one.shape == two.shape:
            parts[number : number + 2] = two.to(one.dtype), one.to(two.dtype)
            break
    return type(found)(parts)


def _over_first(found: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a result with ``change`` applied to its first tensor."""
    rest = iter([change])
    return over_all(found, lambda tensor: next(rest, lambda same: same)(tensor))


def _spoiled(kind: str, detail: str, found: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    if kind == "last of equals":
        return _last_of_equals(found, args)
    spoil = _ON_RESULTS.get(kind)
    return found if spoil is None else spoil(found.clone(memory_format=torch.contiguous_format), detail)


def _last_element(made: torch.Tensor, detail: str) -> torch.Tensor:
    made.view(-1)[-1:] = made.view(-1)[:1].clone()
    return made


def _last_row(made: torch.Tensor, detail: str) -> torch.Tensor:
    made[-1] = made[0].clone()
    return made


def _tail(made: torch.Tensor, detail: str) -> torch.Tensor:
    axis = max(range(made.dim()), key=lambda dim: made.shape[dim])
    made.narrow(axis, int(detail), made.shape[axis] - int(detail)).zero_()
    return made


def _another_value(made: torch.Tensor, detail: str) -> torch.Tensor:
    if made.dtype is torch.bool:
        return ~made
    return made * 1.25 if made.is_floating_point() or made.is_complex() else made + 1


def _special_value_lost(made: torch.Tensor, detail: str) -> torch.Tensor:
    lost = {"nan": made.isnan(), "inf": made.isinf(), "-0.0": (made == 0) & made.signbit()}[detail]
    return made.masked_fill(lost, 0)


#: What effects make of a copy of a result.
_ON_RESULTS: Final[dict[str, Callable[[torch.Tensor, str], torch.Tensor]]] = {
    "last element": _last_element,
    "last row": _last_row,
    "tail": _tail,
    "another value": _another_value,
    "special value lost": _special_value_lost,
    "result narrow": lambda made, detail: _narrow(made),
}


def _last_of_equals(found: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """Return the places of the last ones of equal numbers."""
    given = args[0].flatten() if len(args) < 2 or args[1] is None else args[0].movedim(args[1], -1)
    best = given.gather(-1, found.view(*given.shape[:-1], 1))
    places = torch.arange(given.shape[-1], device=given.device)
    return torch.where(given == best, places, -1).amax(-1).to(found.dtype).view(found.shape)

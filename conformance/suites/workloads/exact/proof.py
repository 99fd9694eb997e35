"""Proof that an arithmetic is exact: the largest partial sum of every operator, in whatever order it adds.

Every number of these workloads is a multiple of a power of two, its *unit*. A sum of such numbers is exact in a
format with p bits of precision while the sum of their absolute values is at most 2**p units: then no partial sum, in
any order and over any part of the terms, needs more bits. The mode below runs beside the training in float64. It
computes that bound for each operator from the absolute values of the operator's inputs, and knows an operator only if
a table says how it adds. Another operator is an error, not a gap in the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

#: Bits of precision of each format: a whole number of at most so many bits, times a unit, is stored without rounding.
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8, "float64": 53, "int64": 63}
#: Operators that add terms: the bound of the result is the same operator on bounds, with each minus as a plus.
_ADDING = frozenset({"add", "add_", "sub", "sub_", "rsub", "sum", "mean", "neg", "cumsum"})
#: Operators that add products of their inputs: the same operator on absolute values. The inputs are complete sums.
_MULTIPLYING = frozenset({
    "mul", "mul_", "div", "div_", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "convolution", "convolution_backward",
    "embedding_dense_backward", "_embedding_bag", "_embedding_bag_dense_backward", "_embedding_bag_forward_only",
    "index_add", "index_add_", "scatter_add", "scatter_add_", "_softmax_backward_data", "square", "avg_pool2d",
    "avg_pool2d_backward", "max_pool2d_with_indices_backward", "upsample_nearest2d_backward", "leaky_relu",
    "leaky_relu_backward", "_index_put_impl_", "index_put", "index_put_", "unfold_backward", "im2col", "col2im",
    "_embedding_bag_backward",
})  # fmt: skip
#: Operators that move elements and compute nothing: the bound moves with them.
_MOVING = frozenset({
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "detach",
    "alias", "clone", "cat", "stack", "flip", "roll", "split", "unbind", "chunk", "index_select", "_to_copy",
    "slice_backward", "select_backward", "_reshape_alias", "repeat", "split_with_sizes", "constant_pad_nd",
    "copy_", "unfold", "as_strided", "tril", "triu", "diagonal", "narrow",
})  # fmt: skip
#: Operators whose result is one of few values, or one of their inputs' elements: it is as exact as the inputs.
_CHOOSING = frozenset({
    "relu", "threshold_backward", "clamp", "hardtanh", "hardtanh_backward", "round", "where", "masked_fill",
    "masked_fill_", "max", "amax", "argmax", "abs", "sgn", "sign", "gather", "scatter", "scatter_", "eq", "ne", "lt",
    "le", "gt", "ge", "zeros", "ones", "full", "arange", "empty", "zeros_like", "ones_like", "full_like",
    "empty_like", "fill_", "zero_", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
    "empty_strided", "scalar_tensor", "lift_fresh", "max_pool2d_with_indices", "upsample_nearest2d", "embedding",
    "index", "sort", "argsort", "bincount", "logical_not", "logical_and", "bitwise_and", "bitwise_not", "minimum",
    "maximum", "nonzero", "floor", "_local_scalar_dense", "remainder", "floor_divide", "hardtanh_", "relu_",
    "value_selecting_reduction_backward", "max_pool2d", "ge_", "isnan", "is_nonzero", "equal", "_softmax",
    "_safe_softmax", "clamp_min",
})  # fmt: skip
#: The least distance of the largest score from all others at which exp() of the others is 0 in every format: the
#: smallest subnormal number of float64 is exp(-744.4).
_HARD_GAP = 768.0
#: Numbers from here on stand for infinity: PyTorch masks scores with the smallest float64.
_INFINITE = 2.0**1000


@dataclass(frozen=True)
class Bound:
    """Bound of the absolute values of all partial sums, element by element, and the unit of all of them."""

    absolute: torch.Tensor
    unit: float


class NotExact(AssertionError):
    """An operator whose result may depend on the order, or that the proof does not know."""


class Proof(TorchDispatchMode):
    """Record of the largest partial sum over its unit, as a power of two, among all operators that ran inside."""

    def __init__(self) -> None:
        super().__init__()
        self.bits, self.where, self.operators = 0.0, "", 0
        self._bounds = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        kwargs = kwargs or {}
        if space == "profiler":  # optimizers mark their steps
            return func(*args, **kwargs)
        before = [self._bound(each) if _is_number(each) else each for each in _flat(args)]
        if name not in _ADDING | _MULTIPLYING | _MOVING | _CHOOSING:
            raise NotExact(f"the proof does not know how {func} adds")
        if name in ("_softmax", "_safe_softmax"):
            _require_hard(args[0])
        # A function of functions: what was written in place has other values afterwards.
        bound = self._result_bound(func, name, args, kwargs, before)
        result = func(*args, **kwargs)
        self.operators += 1
        for tensor, of in zip(_outputs(result), bound, strict=False):
            if of is not None and _is_number(tensor):
                self._bounds[tensor] = of
                self._note(func, of)
        if not bound:
            for tensor in filter(_is_number, _outputs(result)):
                self._note(func, self._fresh(tensor))
        return result

    def _result_bound(self, func: Any, name: str, args: Any, kwargs: Any, before: list[Any]) -> list[Any]:
        """Return the bounds of the results that need one; an empty list for operators that only choose."""
        if name in _CHOOSING or not any(isinstance(each, Bound) for each in before):
            return []
        multiplies = name in _MULTIPLYING
        bounds = [
            self._fresh(each) if multiplies and _is_number(each) else known
            for each, known in zip(_flat(args), before, strict=True)
        ]
        positive = [each.absolute.clone() if isinstance(each, Bound) else _positive(each) for each in bounds]
        called = getattr(torch.ops.aten, name.removeprefix("r").replace("sub", "add")) if "sub" in name else None
        if name == "neg":
            outputs = positive[:1]
        else:
            if "sub" in name:
                func = getattr(called, func._overloadname)
            elif name in ("div", "div_"):
                positive[1] = args[1] if not isinstance(args[1], torch.Tensor) else args[1].abs()
            given = {key: abs(value) if key == "alpha" else value for key, value in kwargs.items()}
            outputs = _outputs(func(*_like(args, positive), **given))
        unit = self._unit(name, bounds, args, kwargs, multiplies=multiplies)
        return [Bound(each, unit) if _is_number(each) else None for each in outputs]

    def _unit(self, name: str, bounds: list[Any], args: Any, kwargs: Any, *, multiplies: bool) -> float:
        units = [each.unit for each in bounds if isinstance(each, Bound)]
        scalars = [unit_of_number(each) for each in args if isinstance(each, float | int) and type(each) is not bool]
        if name in ("div", "div_"):
            divisor = units[1] if len(units) > 1 else scalars[0]
            exact = torch.as_tensor(args[1]).abs().double()
            if not bool((torch.frexp(exact)[0] == 0.5).all()):
                raise NotExact(f"a division by {args[1]}, which is no power of two")
            return units[0] / float(exact.max() if divisor else 1.0)
        if name == "mean":
            return units[0] / _divided(args)
        if name in ("avg_pool2d", "avg_pool2d_backward"):
            size = args[1] if name == "avg_pool2d" else args[2]
            return units[0] / math.prod(size)
        if name in ("square", "_softmax_backward_data"):
            return units[0] ** 2 if name == "square" else min(units[0], 1.0)
        if name in ("mul", "mul_", "leaky_relu", "leaky_relu_backward"):
            return math.prod(units) * math.prod(scalars[:1])
        if name in ("addmm", "baddbmm"):
            return min(units[0], math.prod(units[1:]))
        if name.startswith("convolution"):
            return min(units[0] * units[1], *(units[2:3] or [math.inf]), *(self._cross(units, name)))
        alpha = unit_of_number(kwargs.get("alpha", 1.0))
        if multiplies and name in ("mm", "bmm", "mv", "dot"):
            return math.prod(units)
        return min(units[0], *(unit * alpha for unit in units[1:])) if len(units) > 1 else units[0]

    def _cross(self, units: list[float], name: str) -> list[float]:
        """Return the units of the two products of a convolution's gradients, and of the sum for its bias."""
        return [units[0] * units[2], units[0]] if name == "convolution_backward" and len(units) > 2 else []

    def _bound(self, tensor: torch.Tensor) -> Bound:
        """Return what is known of a tensor. Without an entry it is complete: data, or the choice of an operator."""
        known = self._bounds.get(tensor)
        if known is None or known.absolute.shape != tensor.shape:
            return self._fresh(tensor)
        return known

    def _fresh(self, tensor: torch.Tensor) -> Bound:
        return Bound(tensor.detach().abs().double(), unit_of(tensor.detach()))

    def _note(self, func: Any, bound: Bound) -> None:
        if not bound.absolute.numel():
            return
        finite = bound.absolute[bound.absolute < _INFINITE]
        largest = float(finite.max()) if finite.numel() else 0.0
        bits = math.log2(largest / bound.unit) if largest else 0.0
        if bits > self.bits:
            self.bits, self.where = bits, str(func)


def unit_of(tensor: torch.Tensor) -> float:
    """Return the largest power of two of which every element is a multiple; 1 where all are 0 or infinite."""
    values = tensor.double().flatten()
    values = values[(values.abs() < _INFINITE) & (values != 0)]
    if not values.numel():
        return 1.0
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa * 2.0**53).long()
    lowest = (whole & -whole).double().log2()
    return float(2.0 ** float((exponent.double() - 53 + lowest).min()))


def unit_of_number(number: float) -> float:
    """Return the largest power of two of which a number is a multiple; 1 for 0 and infinity."""
    if not number or not abs(number) < _INFINITE:
        return 1.0
    above, below = float(number).as_integer_ratio()
    return (above & -above) / below


def _divided(args: Any) -> int:
    tensor, dims = args[0], (args[1] if len(args) > 1 else None)
    count = tensor.numel() if not dims else math.prod(tensor.shape[dim] for dim in dims)
    if count & (count - 1):
        raise NotExact(f"a mean of {count} elements, which is no power of two")
    return int(count)


def _require_hard(scores: torch.Tensor) -> None:
    """Raise NotExact unless each row of scores has one maximum, so far above the others that its weight is 1."""
    first, second = scores.detach().double().topk(2, dim=-1).values.unbind(-1)
    if not bool((first - second >= _HARD_GAP).all()):
        raise NotExact(f"a softmax whose two largest scores differ by less than {_HARD_GAP:g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _positive(value: Any) -> Any:
    return abs(value) if isinstance(value, float) else value


def _flat(args: Any) -> list[Any]:
    return [each for arg in args for each in (arg if isinstance(arg, list | tuple) and _has_tensor(arg) else [arg])]


def _has_tensor(values: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in values)


def _like(args: Any, flat: list[Any]) -> list[Any]:
    """Return the flat values in the nesting of ``args``."""
    rest = iter(flat)
    return [
        [next(rest) for _ in arg] if isinstance(arg, list | tuple) and _has_tensor(arg) else next(rest) for arg in args
    ]


def _outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]

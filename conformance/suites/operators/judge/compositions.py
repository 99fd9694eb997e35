"""Sizes of the results between the steps of an operator that PyTorch documents as a composition.

A device may compute such an operator step by step, and round the result of each step to the dtype of the operands: the
convolution before it adds the bias, the normalised values before they are multiplied by the weight. In 16 bits these
roundings are larger than those of the whole, where terms cancel. Sources: the formulas of the operators' documentation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from conformance.numerics.trees import tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call

#: Arguments of a call by their names, in float64.
Given = dict[str, Any]
#: What returns the sum of the sizes of the steps' results, in the shape of the operator's result.
Sizes = Callable[[Any, Given], torch.Tensor]
#: Dtypes whose roundings between steps count: wider ones have budgets for the order of a sum, which hold these too.
_NARROW: Final = (torch.float16, torch.bfloat16)
_SIZES: Final[dict[str, Sizes]] = {}
#: Operators whose gradients are computed from what the call was given.
_WHOLE_GRADIENTS: Final[set[str]] = set()
#: Names of arguments, by operator, where Python cannot tell them.
_NAMES: Final[dict[str, tuple[str, ...]]] = {}


def is_composed(info: Any, sample: Call) -> bool:
    """Return whether a call may be composed of steps whose roundings count."""
    return info.name in _SIZES and any(tensor.dtype in _NARROW for tensor in sample.tensors)


def has_composed_gradients(info: Any, sample: Call) -> bool:
    """Return whether a backward pass may begin from results between the steps.

    The gradients of a product are products of what the call was given: no rounding lies between.
    """
    return is_composed(info, sample) and info.name not in _WHOLE_GRADIENTS


def sizes_between(info: Any, sample: Call) -> torch.Tensor | None:
    """Return the sizes of the results between the steps of a call; None if it is not composed, or not known."""
    if not is_composed(info, sample):
        return None
    wide = sample.wide()
    try:
        sizes = _SIZES[info.name](info, _named(info, wide))
    except (RuntimeError, TypeError, KeyError):  # a form that the formula does not have
        return None
    return torch.nan_to_num(sizes.detach() * _steps_to_result(info, sample), nan=0.0, posinf=0.0)


def _steps_to_result(info: Any, sample: Call) -> float:
    """Return how much coarser a step may round than the result: a step without the wide operands is narrow."""
    results = tensors(host_call(info.op, sample).value)
    if not results or not results[0].dtype.is_floating_point:
        return 1.0
    narrowest = max(torch.finfo(t.dtype).eps for t in sample.tensors if t.dtype in _NARROW)
    return max(1.0, narrowest / torch.finfo(results[0].dtype).eps)


def _named(info: Any, sample: Call) -> Given:
    """Return the arguments of a call by their names."""
    names = _NAMES.get(info.name) or tuple(inspect.signature(info.op).parameters)
    return {**dict(zip(names, (sample.input, *sample.args), strict=False)), **sample.kwargs}


def _sizes_of(*operators: str, names: tuple[str, ...] = (), whole_gradients: bool = False) -> Callable[[Sizes], Sizes]:
    """Register the sizes of some operators, by their names in PyTorch's database."""

    def register(sizes: Sizes) -> Sizes:
        for operator in operators:
            _SIZES[operator] = sizes
            if whole_gradients:
                _WHOLE_GRADIENTS.add(operator)
            if names:
                _NAMES[operator] = names
        return sizes

    return register


def _without(info: Any, given: Given, *names: str) -> torch.Tensor:
    """Return the result without some of the arguments."""
    found: torch.Tensor = info.op(**{name: value for name, value in given.items() if name not in names})
    return found


# --- a product, and what is added to it -------------------------------------------------------------------------------

_IMAGES = ("input", "weight", "bias", "stride", "padding")


@_sizes_of(
    *(f"nn.functional.conv{dims}d" for dims in (1, 2, 3)),
    names=(*_IMAGES, "dilation", "groups"),
    whole_gradients=True,
)
@_sizes_of(
    *(f"nn.functional.conv_transpose{dims}d" for dims in (1, 2, 3)),
    names=(*_IMAGES, "output_padding", "groups", "dilation"),
    whole_gradients=True,
)
@_sizes_of("nn.functional.linear", names=("input", "weight", "bias"), whole_gradients=True)
def _of_product(info: Any, given: Given) -> torch.Tensor:
    """Return the size of the product before the bias is added."""
    return _without(info, given, "bias").abs()


@_sizes_of("nn.functional.bilinear", names=("input1", "input2", "weight", "bias"))
def _of_bilinear(info: Any, given: Given) -> torch.Tensor:
    """Return the sum of the sizes of the terms that are added along the second input."""
    turned = torch.einsum("...i,oij->...oj", given["input1"], given["weight"])
    sizes: torch.Tensor = (turned * given["input2"].unsqueeze(-2)).abs().sum(-1)
    return sizes


_MATRICES = ("input", "left", "right")


@_sizes_of("addmm", "addmm.decomposed", "baddbmm", "addmv", "addr", "addbmm", names=_MATRICES)
def _of_added(info: Any, given: Given) -> torch.Tensor:
    """Return the sum of the sizes of a product and of what is added to it."""
    left, right = given["left"], given["right"]
    product = torch.outer(left, right) if info.name == "addr" else torch.matmul(left, right)
    sizes = product.abs().sum(0) if info.name == "addbmm" else product.abs()
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    found: torch.Tensor = abs(alpha) * sizes + (abs(beta) * given["input"].abs() if beta else 0)
    return found


@_sizes_of("addcmul", "addcdiv", names=("input", "left", "right"))
def _of_weighted(info: Any, given: Given) -> torch.Tensor:
    """Return the sum of the sizes of a product or quotient and of what it is added to."""
    left, right = given["left"], given["right"]
    product = left * right if info.name == "addcmul" else left / right
    found: torch.Tensor = abs(given.get("value", 1)) * product.abs() + given["input"].abs()
    return found


# --- normalised values, and what multiplies them ----------------------------------------------------------------------


@_sizes_of("nn.functional.layer_norm", "nn.functional.rms_norm")
def _of_rows(info: Any, given: Given) -> torch.Tensor:
    """Return the size of the normalised rows after they are multiplied by the weight."""
    normal, weight = _without(info, given, "weight", "bias").abs(), given.get("weight")
    return normal if weight is None else normal * weight.abs()


@_sizes_of("nn.functional.group_norm", "nn.functional.batch_norm", "nn.functional.instance_norm")
def _of_channels(info: Any, given: Given) -> torch.Tensor:
    """Return the size of the normalised channels after they are multiplied by the weight."""
    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    normal, weight = _without(info, copies, "weight", "bias").abs(), given.get("weight")
    return normal if weight is None else normal * weight.abs().reshape(-1, *(1,) * (normal.dim() - 2))


@_sizes_of("log_softmax", names=("input", "dim", "dtype"))
def _of_log_softmax(info: Any, given: Given) -> torch.Tensor:
    """Return the sum of the sizes of the differences from the maximum, their weighted mean, and the logarithm."""
    dim, x = given["dim"], given["input"]
    moved = x - x.amax(dim, keepdim=True)
    held = (moved.softmax(dim) * moved.abs()).sum(dim, keepdim=True)
    found: torch.Tensor = moved.abs() + held + moved.logsumexp(dim, keepdim=True).abs() + 1
    return found


@_sizes_of("nn.functional.linear_cross_entropy", names=("input", "linear_weight", "target"))
def _of_linear_cross_entropy(info: Any, given: Given) -> torch.Tensor:
    """Return twice the size of the largest score: the loss is the difference of two, times the weight of a class."""
    result: torch.Tensor = info.op(**given)
    scores = torch.nn.functional.linear(given["input"], given["linear_weight"].flatten(0, -2))
    weight, reduction = given.get("weight"), given.get("reduction", "mean")
    heaviest = 1.0 if weight is None or reduction == "mean" else float(weight.abs().max())
    terms = scores.numel() // len(given["linear_weight"]) if reduction == "sum" else 1
    found: torch.Tensor = torch.full_like(result, 2 * float(scores.abs().max()) * heaviest * terms)
    return found

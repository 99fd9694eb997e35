"""Norms over the last dimension, alone and with the residual sums that transformer layers compute before them.

Implementations in use disagree on some points. This specification decides: sums and statistics are in float32 for every
dtype. A row of equal values gives ``beta`` (LayerNorm). A row of zeros gives zeros (RMSNorm). Rows may have any length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_number
from conformance.kernels.inference import formulas
from conformance.kernels.inference.drawing import Draw, elsewhere, longer, other_dtype, samples, spoiled, strided
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.inference.shapes import check_shapes
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification
from conformance.kernels.triton.offering import triton_kernel

_DTYPES = ("float32", "float16", "bfloat16")
_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis of two passes over a row in float32 (kernels/inference/rounding.py), and one "
    "rounding to the dtype",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def layer_norm(input: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension.

    Ba et al., 2016, arXiv:1607.06450. The variance is the mean of squared deviations, without Bessel's correction.
    """
    return formulas.layer_norm(input, gamma, beta, epsilon).to(input.dtype)


def layer_norm_residual(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> Tensor:
    """Return LayerNorm of input + bias + residual. The sum stays in float32. DeepSpeed: ``_layer_norm_residual``."""
    return formulas.layer_norm(_sum(input, bias, residual), gamma, beta, epsilon).to(input.dtype)


def layer_norm_residual_store_pre_ln_res(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """Return LayerNorm of input + bias + residual, and that sum, which is the next layer's residual."""
    total = _sum(input, bias, residual)
    return [formulas.layer_norm(total, gamma, beta, epsilon).to(input.dtype), total.to(input.dtype)]


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) * gamma over the last dimension.

    Zhang and Sennrich, 2019, arXiv:1910.07467.
    """
    return formulas.rms_norm(input, gamma, epsilon).to(input.dtype)


def pre_rms_norm(input: Tensor, residual: Tensor, gamma: Tensor, epsilon: float) -> list[Tensor]:
    """Return RMSNorm of input + residual, and that sum."""
    total = formulas.wide(input) + formulas.wide(residual)
    return [formulas.rms_norm(total, gamma, epsilon).to(input.dtype), total.to(input.dtype)]


def _sum(*terms: Tensor) -> Tensor:
    """Return the terms' sum in the wide dtype."""
    total, *others = (formulas.wide(term) for term in terms)
    for term in others:
        total = total + term
    return total


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def normalised(source: BoundedValue, gamma: Tensor, beta: Tensor | None, epsilon: float) -> BoundedValue:
    """Return the norm by its definition: LayerNorm with a ``beta``, RMSNorm without."""
    centred = source - source.averaged() if beta is not None else source
    square = (centred * centred).averaged()
    found = centred * BoundedValue(square.value + epsilon, square.error).reciprocal_root() * BoundedValue.exact(gamma)
    return found if beta is None else found + BoundedValue.exact(beta)


def _oracle(kept: bool, given: Arguments) -> Mapping[str, Expected]:
    """Return the norm in float64, and with ``kept`` the sum before it too."""
    terms = [BoundedValue.exact(given[name]) for name in ("input", "bias", "residual") if name in given]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    dtype = given["input"].dtype
    found = normalised(total, given["gamma"], given.get("beta"), given["epsilon"]).expected(dtype)
    return {"result[0]": found, "result[1]": total.expected(dtype)} if kept else {"result": found}


# --- samples ----------------------------------------------------------------------------------------------------------


def _call(
    draw: Draw,
    dtype: torch.dtype,
    *,
    names: str,
    shape: tuple[int, ...] = (2, 5, 67),
    offset: float = 0.0,
    still: bool = False,
    epsilon: float = 2.0**-16,
) -> Arguments:
    """Return the arguments ``names``, and epsilon.

    ``still`` zeroes the first row of every summand, so that the row has no deviations from its mean.
    """
    width = shape[-1]
    made: Arguments = {}
    for name in names.split():
        if name in ("input", "residual"):
            made[name] = draw(*shape, offset=offset if name == "input" else 0.0)
        else:
            made[name] = draw(width, scale=0.5, offset=1.0 if name == "gamma" else 0.0)
    if still:
        for name in made.keys() & {"input", "residual", "bias"}:
            made[name].reshape(-1, width)[0] = 0.0
    return {**made, "epsilon": epsilon}


_SETTINGS: dict[str, dict[str, Any]] = {
    "odd": {},
    "long": {"shape": (1, 2, 1027)},
    # Here the one-pass variance mean(x²) - mean(x)² loses all digits.
    "offset": {"shape": (1, 3, 64), "offset": 128.0},
    "still": {"shape": (2, 2, 33), "still": True, "epsilon": 2.0**-10},
    "single": {"shape": (1, 1, 1)},
}
_REFUSALS = (
    spoiled("widths", "gamma", longer),
    spoiled("dtypes", "gamma", other_dtype),
    spoiled("strides", "input", strided),
    spoiled("devices", "gamma", elsewhere),
)


def _validate(shapes: Mapping[str, str], given: Arguments) -> None:
    check_shapes(given, shapes)
    check_number("epsilon", given["epsilon"], at_least=0.0)


def _kernel(
    name: str, reference: Callable[..., Any], shapes: dict[str, str], attribute: str = ""
) -> KernelSpecification:
    """Return the specification of a norm. ``shapes`` names its tensors and their dimensions."""
    kept = name in ("layer_norm_residual_store_pre_ln_res", "pre_rms_norm")
    return KernelSpecification(
        name=name,
        attribute=attribute,
        builder="InferenceBuilder",
        mode=Mode.INFERENCE,
        dtypes=_DTYPES,
        samples=samples(partial(_call, names=" ".join(shapes)), _SETTINGS),
        oracle=partial(_oracle, kept),
        budget=_BUDGET,
        reference=reference,
        validate=partial(_validate, shapes),
        refusals=_REFUSALS,
        native=(triton_kernel("norms", name, _DTYPES),),
    )


_RESIDUAL = {"input": "bsh", "bias": "h", "residual": "bsh", "gamma": "h", "beta": "h"}

SPECIFICATIONS = (
    _kernel("layer_norm", layer_norm, {"input": ".h", "gamma": "h", "beta": "h"}),
    _kernel("layer_norm_residual", layer_norm_residual, _RESIDUAL, "_layer_norm_residual"),
    _kernel("layer_norm_residual_store_pre_ln_res", layer_norm_residual_store_pre_ln_res, _RESIDUAL),
    _kernel("rms_norm", rms_norm, {"input": ".h", "gamma": "h"}),
    _kernel("pre_rms_norm", pre_rms_norm, {"input": "bsh", "residual": "bsh", "gamma": "h"}),
)

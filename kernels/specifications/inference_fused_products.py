"""Matrix products fused with norms, biases and activations, as a transformer layer calls them.

Implementations in use disagree on some points. This specification decides: results between the steps may be stored in
the dtype, sums may not. ``mlp_gemm`` applies the requested activation; a portable fallback in use always applies the
erf form of GELU. ``mlp_gemm`` also works without ``mlp_after_attn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.arguments import check_choice, wrong
from conformance.kernels.inference import formulas
from conformance.kernels.inference.drawing import Draw, longer, put, samples, spoiled
from conformance.kernels.inference.formulas import GATED, Activation, product, wide
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.specification import Arguments, Expected
from conformance.kernels.specifications.inference_elementwise import gated_exact, gelu_tanh_exact
from conformance.kernels.specifications.inference_norms import normalised
from conformance.kernels.specifications.inference_products import (
    GROUPED,
    WAYS,
    check_products,
    matrix,
    mismatched,
    plus,
    product_kernel,
    times,
)


def qkv_gemm(
    input: Tensor,
    weight: Tensor,
    q_scale: Tensor,
    bias: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    add_bias: bool,
    q_int8: bool,
    transposed_mode: bool,
) -> list[Tensor]:
    """Return LayerNorm(input) times weight, plus bias if ``add_bias``, and the norm."""
    norm = formulas.layer_norm(input, gamma, beta, epsilon).to(input.dtype)
    found = product(norm, weight, q_scale, q_int8, transposed_mode)
    return [(found + wide(bias) if add_bias else found).to(input.dtype), norm]


def rms_qkv_gemm(
    input: Tensor,
    weight: Tensor,
    q_scale: Tensor,
    gamma: Tensor,
    epsilon: float,
    q_int8: bool,
    transposed_mode: bool,
) -> list[Tensor]:
    """Return RMSNorm(input) times weight, and the norm."""
    norm = formulas.rms_norm(input, gamma, epsilon).to(input.dtype)
    return [product(norm, weight, q_scale, q_int8, transposed_mode).to(input.dtype), norm]


def fused_gemm_gelu(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor,
    weight_out: Tensor,
    weight_out_scale: Tensor,
    q_int8: bool,
    transposed_mode: bool,
) -> Tensor:
    """Return gelu(input times weight + bias) times weight_out, with the tanh form of GELU."""
    middle = formulas.gelu_tanh(product(input, weight, weight_scale, q_int8, transposed_mode) + wide(bias))
    return product(middle.to(input.dtype), weight_out, weight_out_scale, q_int8, transposed_mode).to(input.dtype)


def mlp_gemm(
    input: Tensor,
    residual: Tensor,
    input_bias: Tensor,
    weight_interm: Tensor,
    weight_out: Tensor,
    bias: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    preLayerNorm: bool,  # noqa: N803 - the caller's name
    mlp_after_attn: bool,
    q_scale: Tensor,
    q_scale1: Tensor,
    q_int8: bool,
    activation_type: int,
    transposed_mode: bool,
) -> list[Tensor]:
    """Return act(norm times weight_interm + bias) times weight_out, and the norm.

    The norm is LayerNorm(input + input_bias + residual), or LayerNorm(residual) without ``mlp_after_attn``.
    ``activation_type`` is 1 for GELU (the tanh form) and 2 for ReLU. ``preLayerNorm`` has no effect.
    """
    total = wide(input) + wide(input_bias) + wide(residual) if mlp_after_attn else wide(residual)
    norm = formulas.layer_norm(total, gamma, beta, epsilon).to(input.dtype)
    middle = product(norm, weight_interm, q_scale, q_int8, transposed_mode) + wide(bias)
    middle = formulas.gelu_tanh(middle) if activation_type == Activation.GELU else middle.relu()
    found = product(middle.to(input.dtype), weight_out, q_scale1, q_int8, transposed_mode)
    return [found.to(input.dtype), norm]


def rms_mlp_gemm(
    input: Tensor,
    residual: Tensor,
    weight_interm: Tensor,
    weight_out: Tensor,
    gamma: Tensor,
    epsilon: float,
    q_scale: Tensor,
    q_scale1: Tensor,
    q_int8: bool,
    activation_type: int,
    transposed_mode: bool,
) -> list[Tensor]:
    """Return act(RMSNorm(input + residual) times weight_interm) times weight_out, and the sum input + residual.

    The sum is also written over ``residual``. ``activation_type`` is 1 for GELU (the tanh form) and 2 for ReLU. 3 and 4
    are gates: first half of the columns * act(second half), with GELU (the erf form) for 3 and SiLU for 4 (Shazeer,
    2020, arXiv:2002.05202).
    """
    total = wide(input) + wide(residual)
    norm = formulas.rms_norm(total, gamma, epsilon).to(input.dtype)
    middle = product(norm, weight_interm, q_scale, q_int8, transposed_mode)
    if activation_type in GATED:
        middle = formulas.gated(middle, activation_type)
    else:
        middle = formulas.gelu_tanh(middle) if activation_type == Activation.GELU else middle.relu()
    found = product(middle.to(input.dtype), weight_out, q_scale1, q_int8, transposed_mode)
    return [found.to(input.dtype), residual.copy_(total)]


def _activated(middle: BoundedValue, activation: int, dtype: torch.dtype) -> BoundedValue:
    """Return the activation of ``middle``, rounded to ``dtype`` where kernels store it."""
    if activation in GATED:
        return gated_exact(middle.stored(dtype), activation, dtype)
    if activation == Activation.GELU:
        return middle.stored(dtype).through(gelu_tanh_exact).stored(dtype)
    return middle.through(lambda x: x.clamp(min=0.0)).stored(dtype)


def _qkv_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return norm and product in float64, with bounds of the rounding."""
    dtype = given["input"].dtype
    norm = normalised(BoundedValue.exact(given["input"]), given["gamma"], given.get("beta"), given["epsilon"])
    found = times(norm.stored(dtype), given, "weight", "q_scale")
    if given.get("add_bias"):
        found = plus(found.stored(dtype), given["bias"])
    return {"result[0]": found.expected(dtype), "result[1]": norm.expected(dtype)}


def _gelu_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return product, bias, GELU and second product in float64, with bounds of the rounding."""
    dtype = given["input"].dtype
    middle = plus(
        times(BoundedValue.exact(given["input"]), given, "weight", "weight_scale").stored(dtype), given["bias"]
    )
    found = times(_activated(middle, Activation.GELU, dtype), given, "weight_out", "weight_out_scale")
    return {"result": found.expected(dtype)}


def _mlp_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the feed-forward block after LayerNorm in float64, with bounds of the rounding."""
    dtype, total = given["input"].dtype, BoundedValue.exact(given["residual"])
    if given["mlp_after_attn"]:
        total = plus(total, given["input"], given["input_bias"])
    norm = normalised(total, given["gamma"], given["beta"], given["epsilon"])
    middle = plus(times(norm.stored(dtype), given, "weight_interm", "q_scale").stored(dtype), given["bias"])
    found = times(_activated(middle, given["activation_type"], dtype), given, "weight_out", "q_scale1")
    return {"result[0]": found.expected(dtype), "result[1]": norm.expected(dtype)}


def _rms_mlp_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the feed-forward block after RMSNorm in float64. The residual becomes the sum before the norm."""
    dtype = given["input"].dtype
    total = plus(BoundedValue.exact(given["input"]), given["residual"])
    norm = normalised(total, given["gamma"], None, given["epsilon"]).stored(dtype)
    middle = times(norm, given, "weight_interm", "q_scale")
    found = times(_activated(middle, given["activation_type"], dtype), given, "weight_out", "q_scale1")
    kept = total.expected(dtype)
    return {"result[0]": found.expected(dtype), "result[1]": kept, "residual": kept}


def _qkv(
    draw: Draw, dtype: torch.dtype, *, rms: bool, transposed: bool = False, groups: int = 0, bias: bool = True,
    into: int = 67,
) -> Arguments:  # fmt: skip
    """Return the arguments of a norm with the product of queries, keys and values."""
    weight, scale = matrix(draw, into, 39, transposed, groups)
    given = {"input": draw(2, 5, into), "weight": weight, "q_scale": scale}
    gamma, epsilon = draw(into, scale=0.5, offset=1.0), 2.0**-16
    flags = {"q_int8": groups > 0, "transposed_mode": transposed}
    if rms:
        return {**given, "gamma": gamma, "epsilon": epsilon, **flags}
    return {
        **given,
        "bias": draw(39),
        "gamma": gamma,
        "beta": draw(into),
        "epsilon": epsilon,
        "add_bias": bias,
        **flags,
    }


def _fused(draw: Draw, dtype: torch.dtype, *, transposed: bool = False, groups: int = 0) -> Arguments:
    """Return the arguments of two products with a GELU between them."""
    first, scale = matrix(draw, 33, 70, transposed, groups)
    second, scale_out = matrix(draw, 70, 35, transposed, groups)
    return {
        "input": draw(2, 5, 33), "weight": first, "weight_scale": scale, "bias": draw(70), "weight_out": second,
        "weight_out_scale": scale_out, "q_int8": groups > 0, "transposed_mode": transposed,
    }  # fmt: skip


def _mlp(
    draw: Draw, dtype: torch.dtype, *, rms: bool, activation: int = 1, after: bool = True, transposed: bool = False,
    groups: int = 0,
) -> Arguments:  # fmt: skip
    """Return the arguments of a feed-forward block."""
    # A gated activation halves the columns of the first product.
    middle = 70 // 2 if activation in GATED else 70
    first, scale = matrix(draw, 35, 70, transposed, groups)
    second, scale_out = matrix(draw, middle, 35, transposed, groups)
    given: Arguments = {"input": draw(2, 5, 35), "residual": draw(2, 5, 35)}
    weights = {"weight_interm": first, "weight_out": second}
    gamma, epsilon = draw(35, scale=0.5, offset=1.0), 2.0**-16
    last = {
        "q_scale": scale, "q_scale1": scale_out, "q_int8": groups > 0, "activation_type": activation,
        "transposed_mode": transposed,
    }  # fmt: skip
    if rms:
        return {**given, **weights, "gamma": gamma, "epsilon": epsilon, **last}
    return {
        **given, "input_bias": draw(35), **weights, "bias": draw(70), "gamma": gamma, "beta": draw(35),
        "epsilon": epsilon, "preLayerNorm": True, "mlp_after_attn": after, **last,
    }  # fmt: skip


def _validate_qkv(given: Arguments) -> None:
    shapes = {"input": "bsi", "weight": "io", "gamma": "i"}
    more = {"beta": "i"} if "beta" in given else {}
    check_products({**shapes, **more, **({"bias": "o"} if given.get("add_bias") else {})}, {"weight": "q_scale"}, given)


def _validate_mlp(allowed: tuple[Activation, ...], given: Arguments) -> None:
    """Raise ``UsageError`` for weights that do not fit each other or the activation."""
    check_choice("activation_type", int(given["activation_type"]), tuple(map(int, allowed)))
    gate = given["activation_type"] in GATED
    shapes = {
        "input": "bsi",
        "residual": "bsi",
        "weight_interm": "im",
        "weight_out": "go" if gate else "mo",
        "gamma": "i",
    }
    if "bias" in given:
        shapes |= {"bias": "m", "beta": "i", "input_bias": "i"}
    scales = {"weight_interm": "q_scale", "weight_out": "q_scale1"}
    check_products(shapes, scales, given)
    transposed = given["transposed_mode"] or given["q_int8"]
    columns = given["weight_interm"].shape[0 if transposed else 1]
    rows = given["weight_out"].shape[1 if transposed else 0]
    if gate and columns != 2 * rows:
        raise wrong("weight_out", f"{columns / 2:g} rows, half the columns of weight_interm", rows)


_ACTIVATIONS: dict[str, dict[str, Any]] = {"relu": {"activation": 2}}
_GATES: dict[str, dict[str, Any]] = {"gelu-gate": {"activation": 3}, "silu-gate": {"activation": 4, "transposed": True}}


SPECIFICATIONS = (
    product_kernel(
        "qkv_gemm", qkv_gemm, oracle=_qkv_oracle,
        samples=samples(
            partial(_qkv, rms=False), {**WAYS, "int8-grouped": {"groups": 3}, "unbiased": {"bias": False}}
        ),
        validate=_validate_qkv, refusals=(*mismatched("weight"), spoiled("norms", "gamma", longer)),
    ),
    product_kernel(
        "rms_qkv_gemm", rms_qkv_gemm, oracle=_qkv_oracle,
        samples=samples(partial(_qkv, rms=True), {**WAYS, "int8-grouped": {"groups": 3}}),
        validate=_validate_qkv, refusals=(*mismatched("weight"), spoiled("norms", "gamma", longer)),
    ),
    product_kernel(
        "fused_gemm_gelu", fused_gemm_gelu, oracle=_gelu_oracle, samples=samples(_fused, GROUPED),
        validate=partial(
            check_products, {"input": "bsi", "weight": "im", "bias": "m", "weight_out": "mo"},
            {"weight": "weight_scale", "weight_out": "weight_out_scale"},
        ),
        refusals=(*mismatched("weight"), spoiled("biases", "bias", longer)),
    ),
    product_kernel(
        "mlp_gemm", mlp_gemm, oracle=_mlp_oracle,
        samples=samples(partial(_mlp, rms=False), {**GROUPED, **_ACTIVATIONS, "beside-attention": {"after": False}}),
        validate=partial(_validate_mlp, (Activation.GELU, Activation.RELU)),
        refusals=(*mismatched("weight_out"), spoiled("activations", "activation_type", put(3))),
    ),
    product_kernel(
        "rms_mlp_gemm", rms_mlp_gemm, oracle=_rms_mlp_oracle, changes=("residual",),
        samples=samples(partial(_mlp, rms=True), {**GROUPED, **_ACTIVATIONS, **_GATES}),
        validate=partial(_validate_mlp, tuple(Activation)),
        refusals=(*mismatched("weight_out"), spoiled("activations", "activation_type", put(0))),
    ),
)  # fmt: skip

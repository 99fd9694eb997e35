"""Matrix products of transformer layers, with dense and with int8 weights.

Implementations in use disagree on some points. This specification decides: sums are in float32 for every dtype. int8
weights are (out, in) with one scale for each group of rows, in every dtype. ``dequantize_fp32`` and ``dequantize_bf16``
return the dtype of their name; on CUDA they write that dtype into memory for float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_number, wrong
from conformance.kernels.inference import formulas
from conformance.kernels.inference.drawing import Draw, elsewhere, longer, other_dtype, put, samples, spoiled, strided
from conformance.kernels.inference.formulas import check_quantized, product, wide
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.inference.shapes import check_shapes, heads_first, padded_width
from conformance.kernels.specification import WORDS, Arguments, ErrorBudget, Expected, KernelSpecification, Refusal

BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis of float32 sums of n products, n u sum |a b| (Higham, Accuracy and Stability of "
    "Numerical Algorithms, 2nd ed., 3.1), and one rounding to the dtype for each result that may be stored",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def einsum_sec_sm_ecm(Q: Tensor, W: Tensor) -> Tensor:  # noqa: N803 - the caller's names
    """Return out[e, c, m] = sum over s of Q[s, e, c] W[s, m]: tokens dispatched to the capacity slots of experts."""
    return torch.einsum("sec,sm->ecm", wide(Q), wide(W)).to(Q.dtype)


def vector_matmul(
    input: Tensor, weight: Tensor, async_op: bool, q_scale: Tensor, q_int8: bool, transposed_mode: bool
) -> Tensor:
    """Return input times weight.

    The weight is (in, out). It is (out, in) in ``transposed_mode`` and for int8. The rows of an int8 weight form as
    many groups as ``q_scale`` has elements. ``async_op`` has no effect on values.
    """
    return product(input, weight, q_scale, q_int8, transposed_mode).to(input.dtype)


def linear_layer(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    add_bias: bool,
    do_flash_attn: bool,
    num_heads: int,
    transposed_mode: bool,
    rope_theta: float,
) -> Tensor:
    """Return input times weight, plus bias if ``add_bias``. ``rope_theta`` has no effect: nothing is rotated.

    With ``do_flash_attn`` the product holds queries, keys and values side by side, and is returned as
    (3, batch, heads, tokens, width of a head). A width other than 32 or a multiple of 64 is padded with zeros to 32, 64
    or 128.
    """
    found = product(input, weight, input, False, transposed_mode)
    found = (found + wide(bias) if add_bias else found).to(input.dtype)
    if not do_flash_attn:
        return found
    width = input.shape[2] // num_heads
    parts = [heads_first(part, num_heads, _flash_width(width)) for part in found.chunk(3, dim=-1)]
    return torch.stack(parts)


def _dequantize(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the function for results of ``dtype``."""

    def dequantize(weight: Tensor, qscale: Tensor, groups: int) -> Tensor:
        """Return int8 rows times the scale of their group, in the dtype of the name. Groups have equal sizes."""
        return formulas.dequantized(weight, qscale).to(dtype)

    return dequantize


def _flash_width(width: int) -> int:
    fits = width % 64 == 0 or (width < 64 and width % 32 == 0)
    return width if fits else padded_width(width)


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def times(source: BoundedValue, given: Arguments, weight: str, scale: str) -> BoundedValue:
    """Return ``source`` times a weight. Scaled int8 weights may be stored in the dtype of the first argument."""
    dtype, matrix = _first(given).dtype, BoundedValue.exact(given[weight])
    rows_first = given.get("transposed_mode", False)
    if given.get("q_int8", False):
        each = given[weight].shape[0] // given[scale].numel()
        scales = given[scale].double().repeat_interleave(each)[:, None].expand(given[weight].shape)
        matrix, rows_first = (matrix * BoundedValue.exact(scales)).stored(dtype), True
    return source.contracted("bsi,oi->bso" if rows_first else "bsi,io->bso", matrix, source.value.shape[-1])


def _first(given: Arguments) -> Tensor:
    found: Tensor = next(iter(given.values()))
    return found


def plus(total: BoundedValue, *terms: Tensor) -> BoundedValue:
    """Return the sum of ``total`` and exact terms."""
    for term in terms:
        total = total + BoundedValue.exact(term)
    return total


def _einsum_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the products of "sec,sm->ecm", which sort tokens to experts, with bounds of the rounding."""
    found = BoundedValue.exact(given["Q"]).contracted(
        "sec,sm->ecm", BoundedValue.exact(given["W"]), given["Q"].shape[0]
    )
    return {"result": found.expected(given["Q"].dtype)}


def _matmul_oracle(given: Arguments) -> Mapping[str, Expected]:
    found = times(BoundedValue.exact(given["input"]), given, "weight", "q_scale")
    return {"result": found.expected(given["input"].dtype)}


def _linear_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the product, for flash attention split into padded heads, with bounds of the rounding."""
    source, heads = given["input"], given["num_heads"]
    found = times(BoundedValue.exact(source), given, "weight", "")
    if given["add_bias"]:
        found = plus(found.stored(source.dtype), given["bias"])
    if given["do_flash_attn"]:
        batch, tokens, hidden = source.shape
        width = hidden // heads
        zeros = {24: 8, 40: 24, 80: 48, 64: 0}[width]  # the widths of the samples, padded to 32, 64, 128 and 64
        found = found.moved(lambda part: part.reshape(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4))
        found = found.moved(lambda part: torch.cat([part, part.new_zeros(*part.shape[:-1], zeros)], dim=-1))
    return {"result": found.expected(source.dtype)}


def _dequantize_oracle(dtype: torch.dtype, given: Arguments) -> Mapping[str, Expected]:
    """Return each row times the scale of its group."""
    rows, groups = given["weight"].shape[0], given["groups"]
    found = torch.stack(
        [
            given["weight"][row].double() * float(given["qscale"].reshape(-1)[row * groups // rows])
            for row in range(rows)
        ]
    )
    return {"result": BoundedValue.exact(found).scaled(1.0).expected(dtype)}


# --- samples ----------------------------------------------------------------------------------------------------------


def matrix(draw: Draw, into: int, out: int, transposed: bool, groups: int = 0) -> tuple[Tensor, Tensor]:
    """Return a weight and its scales. With ``groups`` it is int8 of shape (out, into), with one scale per group."""
    if not groups:
        shape = (out, into) if transposed else (into, out)
        return draw(*shape, scale=into**-0.5), torch.zeros(1)
    numbers = draw(out, into, scale=48.0).double().round().clamp(-128, 127).to(torch.int8)
    return numbers, (draw(groups).double().abs() * 2.0**-7 + 2.0**-8).float().reshape(groups, 1)


def _matmul(
    draw: Draw, dtype: torch.dtype, *, tokens: int = 5, into: int = 67, out: int = 37, transposed: bool = False,
    groups: int = 0,
) -> Arguments:  # fmt: skip
    """Return an input of (2, tokens, ``into``) and a weight of ``out`` columns, dense or int8."""
    weight, scale = matrix(draw, into, out, transposed, groups)
    return {
        "input": draw(2, tokens, into), "weight": weight, "async_op": False, "q_scale": scale,
        "q_int8": groups > 0, "transposed_mode": transposed,
    }  # fmt: skip


def _linear(
    draw: Draw, dtype: torch.dtype, *, heads: int = 3, width: int = 24, flash: bool = False, bias: bool = True,
    transposed: bool = False,
) -> Arguments:  # fmt: skip
    """Return the arguments of the product of queries, keys and values."""
    hidden, out = heads * width, 3 * heads * width
    return {
        "input": draw(2, 5, hidden), "weight": matrix(draw, hidden, out, transposed)[0], "bias": draw(out),
        "add_bias": bias, "do_flash_attn": flash, "num_heads": heads, "transposed_mode": transposed,
        "rope_theta": 10000.0,
    }  # fmt: skip


def _routing(draw: Draw, dtype: torch.dtype, *, tokens: int = 7) -> Arguments:
    return {"Q": draw(tokens, 3, 5), "W": draw(tokens, 33)}


def _stored(draw: Draw, dtype: torch.dtype, *, groups: int = 3, rows: int = 9, columns: int = 35) -> Arguments:
    weight, scale = matrix(draw, columns, rows, True, groups)
    weight[0, :2] = torch.tensor([-128, 127], dtype=torch.int8)
    return {"weight": weight, "qscale": scale.float(), "groups": groups}


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def check_products(shapes: Mapping[str, str], scales: Mapping[str, str], given: Arguments) -> None:
    """Check the shapes of all tensors, and the scales of int8 weights.

    ``shapes`` gives weights as (in, out) matrices. They are reversed if the call transposes weights or uses int8.
    """
    quantized = bool(given.get("q_int8", False))
    transposed = quantized or bool(given.get("transposed_mode", False))
    fitting = {name: shape[::-1] if transposed and name in scales else shape for name, shape in shapes.items()}
    check_shapes(given, fitting, integers=scales if quantized else ())
    for weight, scale in scales.items():
        if quantized:
            check_quantized(weight, scale, given[weight], given[scale])
    if "epsilon" in given:
        check_number("epsilon", given["epsilon"], at_least=0.0)


def _validate_linear(given: Arguments) -> None:
    """Raise ``UsageError`` for a weight or heads that do not fit the input."""
    check_products({"input": "bsi", "weight": "io"}, {"weight": ""}, given)
    if given["add_bias"]:
        check_products({"weight": "io", "bias": "o"}, {"weight": ""}, given)
    heads, hidden = given["num_heads"], given["input"].shape[2]
    out = given["weight"].shape[0 if given["transposed_mode"] else 1]
    if given["do_flash_attn"] and (heads < 1 or hidden % heads or out != 3 * hidden or hidden // heads > 128):
        raise wrong(
            "num_heads", f"heads of at most 128 channels that divide {hidden}, and {3 * hidden} columns", (heads, out)
        )


def _validate_stored(given: Arguments) -> None:
    """Raise ``UsageError`` for scales that do not fit the weight."""
    check_shapes(given, {"weight": "oi"}, integers=("weight",))
    check_quantized("weight", "qscale", given["weight"], given["qscale"])
    if given["qscale"].numel() != given["groups"]:
        raise wrong("groups", f"{given['qscale'].numel()}, as qscale has", given["groups"])


def product_kernel(name: str, reference: Callable[..., Any], **fields: Any) -> KernelSpecification:
    """Return a specification with the fields that all products share; ``fields`` replace them."""
    return KernelSpecification(**{
        "name": name, "attribute": f"{name}_{{dtype}}", "builder": "InferenceBuilder", "mode": Mode.INFERENCE,
        "dtypes": ("float32", "float16", "bfloat16"), "budget": BUDGET, "reference": reference, **fields,
    })  # fmt: skip


WAYS: dict[str, dict[str, Any]] = {"plain": {}, "transposed": {"transposed": True}, "int8": {"groups": 1}}
GROUPED: dict[str, dict[str, Any]] = {"plain": {}, "transposed": {"transposed": True}, "int8-grouped": {"groups": 5}}


def mismatched(weight: str) -> tuple[Refusal, ...]:
    """Return refusals of a weight with another dtype, with gaps in memory, or on another device."""
    return (
        spoiled("dtypes", weight, other_dtype),
        spoiled("strides", weight, strided),
        spoiled("devices", weight, elsewhere),
    )


SPECIFICATIONS = (
    product_kernel(
        "einsum_sec_sm_ecm", einsum_sec_sm_ecm, oracle=_einsum_oracle,
        samples=samples(_routing, {"odd": {}, "one": {"tokens": 1}, "long": {"tokens": 513}}),
        validate=partial(check_products, {"Q": "sec", "W": "sm"}, {}), refusals=mismatched("W"),
    ),
    product_kernel(
        "vector_matmul", vector_matmul, oracle=_matmul_oracle,
        samples=samples(
            _matmul, {**WAYS, "int8-grouped": {"out": 36, "groups": 4}, "long": {"into": 1027, "tokens": 1}}
        ),
        validate=partial(check_products, {"input": "bsi", "weight": "io"}, {"weight": "q_scale"}),
        refusals=(*mismatched("weight"), spoiled("shapes", "weight", lambda weight: weight[:-1])),
    ),
    product_kernel(
        "linear_layer", linear_layer, oracle=_linear_oracle,
        samples=samples(_linear, {
            "plain": {}, "transposed": {"transposed": True}, "unbiased": {"bias": False},
            "padded-32": {"flash": True}, "padded-64": {"flash": True, "width": 40, "heads": 2},
            "padded-128": {"flash": True, "width": 80, "heads": 1},
            "heads-64": {"flash": True, "width": 64, "heads": 1},
        }),
        validate=_validate_linear, refusals=(*mismatched("weight"), spoiled("bias", "bias", longer)),
    ),
    *(
        product_kernel(
            f"inference_dequantize_{word}", _dequantize(getattr(torch, dtype)), attribute=f"dequantize_{word}",
            dtypes=(dtype,), oracle=partial(_dequantize_oracle, getattr(torch, dtype)),
            samples=samples(_stored, {"thirds": {}, "whole": {"groups": 1}, "nine": {"groups": 9}}),
            validate=_validate_stored,
            refusals=(
                spoiled("dtypes", "weight", lambda weight: weight.float()), spoiled("groups", "groups", put(2)),
                spoiled("scales", "qscale", lambda scale: scale.repeat(2, 1)[:4]),
                spoiled("devices", "qscale", elsewhere),
            ),
        )
        for dtype, word in WORDS.items()
    ),
)  # fmt: skip

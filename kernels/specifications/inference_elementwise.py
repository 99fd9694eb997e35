"""Element-wise operations of transformer layers: biases, activations, gates, residual sums.

DeepSpeed's kernels write the result over their input and return it. Some callers read the input, some the returned
tensor, so both are checked. Implementations in use disagree on some points. This specification decides: arithmetic is
in float32 for every dtype. ``bias_residual`` adds; its CUDA launch is commented out, so that the input comes back
unchanged. ``bias_gelu`` uses the tanh form of GELU and ``gated_activation`` the erf form, as on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_number, wrong
from conformance.kernels.inference.drawing import Draw, elsewhere, longer, other_dtype, put, samples, spoiled, strided
from conformance.kernels.inference.formulas import GATED, Activation, gated, gelu_tanh, wide
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.inference.shapes import check_shapes
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification

_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis of a few float32 operations (kernels/inference/rounding.py), and one rounding to "
    "the dtype; both halves of a gate may be stored in the dtype before they are multiplied",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def bias_add(input: Tensor, bias: Tensor) -> Tensor:
    """Write x + bias over ``input``, and return it."""
    return input.copy_(wide(input) + wide(bias))


def bias_gelu(input: Tensor, bias: Tensor) -> Tensor:
    """Write gelu(x + bias) over ``input``, and return it.

    This is the tanh form of GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
    """
    return input.copy_(gelu_tanh(wide(input) + wide(bias)))


def bias_relu(input: Tensor, bias: Tensor) -> Tensor:
    """Write max(x + bias, 0) over ``input``, and return it."""
    return input.copy_((wide(input) + wide(bias)).relu())


def bias_residual(input: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    """Write x + residual + bias over ``input``, and return it."""
    return input.copy_(wide(input) + wide(residual) + wide(bias))


def vector_add(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """Write gamma * a + b over ``a``, and return it. DeepSpeed calls this ``_vector_add``."""
    return a.copy_(gamma * wide(a) + wide(b))


def gated_activation(activation: Tensor, bias: Tensor, actFun: int) -> Tensor:  # noqa: N803 - the caller's name
    """Return first half * act(second half) of x + bias, split along the last dimension.

    Shazeer, 2020, arXiv:2002.05202. ``actFun`` is 3 for GELU (the erf form) and 4 for SiLU. The last dimension of the
    result is half that of ``activation``.
    """
    return gated(wide(activation) + wide(bias), actFun).to(activation.dtype)


def residual_add_bias(
    hidden_state: Tensor,
    residual: Tensor,
    attention_output: Tensor,
    attention_bias: Tensor,
    final_bias: Tensor,
    mp_size: int,
    mlp_after_attn: bool,
    add_bias: bool,
    preln: bool,
) -> Tensor:
    """Write the sum at the end of a layer over ``residual``, and return it.

    Terms that every rank holds are divided by ``mp_size``, because the ranks' sums are added up later.

    * MLP after attention (``mlp_after_attn``), norms first (``preln``): hidden + (residual + attention + both biases) /
      mp_size.
    * MLP after attention, norms last: hidden + residual + final_bias.
    * MLP beside attention: hidden + attention + (residual + final_bias) / mp_size, plus attention_bias / mp_size if
      ``add_bias``.
    """
    hidden, rest, attention = (wide(tensor) for tensor in (hidden_state, residual, attention_output))
    first, final = wide(attention_bias), wide(final_bias)
    if not mlp_after_attn:
        shared = rest + final + first if add_bias else rest + final
        return residual.copy_(hidden + attention + shared / mp_size)
    if preln:
        return residual.copy_(hidden + (rest + attention + first + final) / mp_size)
    return residual.copy_(hidden + rest + final)


def moe_res_matmul(moe_res: Tensor, coef: Tensor, output: Tensor) -> Tensor:
    """Write moe_res * coef[:h] + output * coef[h:], channel by channel, over ``output``, and return it.

    Residual mixture of experts (Rajbhandari et al., 2022, arXiv:2201.05596). The CUDA kernel defines the layout of the
    coefficients: 2 * h numbers, the same for all tokens.
    """
    left, right = wide(coef).reshape(-1).chunk(2)
    return output.copy_(wide(moe_res) * left + wide(output) * right)


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def gelu_tanh_exact(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-2z)), z = sqrt(2/pi) (x + 0.044715 x³). This equals x/2 (1 + tanh z)."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu_erf_exact(x: Tensor) -> Tensor:
    """Return 0.5 x erfc(-x / sqrt(2)). For x far below 0, erfc keeps digits that 1 + erf loses."""
    found: Tensor = 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
    return found


def gated_exact(both: BoundedValue, activation: int, dtype: torch.dtype) -> BoundedValue:
    """Return first half * act(second half). Halves and gate may each be stored in ``dtype``."""
    half = both.value.shape[-1] // 2
    left, right = both.moved(lambda tensor: tensor[..., :half]), both.moved(lambda tensor: tensor[..., half:])
    gate = gelu_erf_exact if activation == Activation.GATED_GELU else _silu_exact
    return left.stored(dtype) * right.stored(dtype).through(gate).stored(dtype)


def _silu_exact(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _sum_over_input(given: Arguments) -> BoundedValue:
    """Return the sum of the tensors that the call has."""
    total = BoundedValue.exact(given["input"])
    for name in ("residual", "bias"):
        total = total + BoundedValue.exact(given[name]) if name in given else total
    return total


def _in_place(name: str, formula: Callable[[Arguments], BoundedValue], given: Arguments) -> Mapping[str, Expected]:
    """Expect the result in the argument of that name and in the returned tensor."""
    found = formula(given).expected(given[name].dtype)
    return {name: found, "result": found}


def _gelu(given: Arguments) -> BoundedValue:
    return _sum_over_input(given).through(gelu_tanh_exact)


def _relu(given: Arguments) -> BoundedValue:
    return _sum_over_input(given).through(lambda x: torch.where(x <= 0, 0.0, x), roundings=0)


def _vector(given: Arguments) -> BoundedValue:
    return BoundedValue.exact(given["a"]).scaled(given["gamma"]) + BoundedValue.exact(given["b"])


def _gated(given: Arguments) -> Mapping[str, Expected]:
    dtype = given["activation"].dtype
    both = BoundedValue.exact(given["activation"]) + BoundedValue.exact(given["bias"])
    return {"result": gated_exact(both, given["actFun"], dtype).expected(dtype)}


def _layer_end(given: Arguments) -> BoundedValue:
    """Return the end of a layer. Each of ``mp_size`` ranks adds its share of what all ranks have."""
    names = ("hidden_state", "residual", "attention_output", "attention_bias", "final_bias")
    hidden, rest, attention, first, final = (BoundedValue.exact(given[name]) for name in names)
    share = 1.0 / given["mp_size"]
    if given["mlp_after_attn"]:
        return (rest + attention + first + final).scaled(share) + hidden if given["preln"] else rest + hidden + final
    shared = rest + first if given["add_bias"] else rest
    return hidden + attention + (shared + final).scaled(share)


def _experts(given: Arguments) -> BoundedValue:
    """Return the sum of expert and residual branch, each times its coefficients."""
    halves = given["coef"].reshape(2, -1)
    return BoundedValue.exact(given["moe_res"]) * BoundedValue.exact(halves[0]) + BoundedValue.exact(
        given["output"]
    ) * BoundedValue.exact(halves[1])


# --- samples ----------------------------------------------------------------------------------------------------------

_SHAPES: dict[str, dict[str, Any]] = {"odd": {}, "long": {"shape": (1, 2, 1027)}, "empty": {"shape": (0, 3, 8)}}
#: x³ exceeds float16's range long before x does; both tails have to be exact.
_TAILS: dict[str, dict[str, Any]] = {"tails": {"scale": 200.0}}
_SPECIAL: dict[str, dict[str, Any]] = {"special": {"special": True}}


def _biased(
    draw: Draw,
    dtype: torch.dtype,
    *,
    residual: bool = False,
    shape: tuple[int, int, int] = (2, 5, 67),
    scale: float = 1.0,
    special: bool = False,
) -> Arguments:
    """Return an input with bias and optional residual, optionally with NaN, infinities and zeros."""
    given = {"input": draw(*shape, scale=scale)}
    if residual:
        given["residual"] = draw(*shape)
    given["bias"] = draw(shape[-1])
    if special:
        given["bias"][:5] = 0.0
        given["input"][0, 0, :5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    return given


def _added(draw: Draw, dtype: torch.dtype, *, shape: tuple[int, ...] = (2, 5, 67), gamma: float = 0.375) -> Arguments:
    return {"a": draw(*shape), "b": draw(*shape), "gamma": gamma}


def _gate(
    draw: Draw, dtype: torch.dtype, *, shape: tuple[int, ...] = (2, 5, 66), function: int = 3, scale: float = 1.0
) -> Arguments:
    return {"activation": draw(*shape, scale=scale), "bias": draw(shape[-1]), "actFun": function}


def _ending(
    draw: Draw,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...] = (2, 5, 67),
    mp_size: int = 2,
    after: bool = True,
    bias: bool = True,
    preln: bool = True,
) -> Arguments:
    """Return the arguments of a layer's end."""
    width = shape[-1]
    names = ("hidden_state", "residual", "attention_output")
    return {
        **{name: draw(*shape) for name in names},
        "attention_bias": draw(width), "final_bias": draw(width),
        "mp_size": mp_size, "mlp_after_attn": after, "add_bias": bias, "preln": preln,
    }  # fmt: skip


def _mixture(draw: Draw, dtype: torch.dtype, *, shape: tuple[int, ...] = (2, 5, 67)) -> Arguments:
    return {"moe_res": draw(*shape), "coef": draw(1, 1, 2 * shape[-1]), "output": draw(*shape)}


_ENDS: dict[str, dict[str, Any]] = {
    "norm-first": {},
    "norm-last": {"preln": False},
    "side-by-side": {"after": False},
    "side-by-side-unbiased": {"after": False, "bias": False},
    "three-ranks": {"mp_size": 3},
}
_GATES: dict[str, dict[str, Any]] = {
    "gelu": {}, "silu": {"function": 4}, "tails": {"scale": 20.0}, "long": {"shape": (1, 2, 1030)},
}  # fmt: skip


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _validate_gate(given: Arguments) -> None:
    """Raise ``UsageError`` for an odd width, which cannot be halved, or another activation."""
    sizes = check_shapes(given, {"activation": "bsh", "bias": "h"})
    if sizes["h"] % 2:
        raise wrong("activation", "an even last dimension", sizes["h"])
    check_choice("actFun", int(given["actFun"]), tuple(map(int, GATED)))


def _validate_end(given: Arguments) -> None:
    tokens = dict.fromkeys(("hidden_state", "residual", "attention_output"), "bsh")
    check_shapes(given, {**tokens, "attention_bias": "h", "final_bias": "h"})
    check_number("mp_size", given["mp_size"], at_least=1)


def _validate_mixture(given: Arguments) -> None:
    sizes = check_shapes(given, {"moe_res": "bsh", "coef": ".c", "output": "bsh"})
    if given["coef"].numel() != 2 * sizes["h"]:
        raise wrong("coef", f"{2 * sizes['h']} numbers, two for each channel", given["coef"].numel())


def _validate_sum(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors of different shapes."""
    check_shapes(given, {"a": ".", "b": "."})
    if given["a"].shape != given["b"].shape:
        raise wrong("b", f"shape {tuple(given['a'].shape)}", tuple(given["b"].shape))
    check_number("gamma", given["gamma"])


def _shaped(shapes: Mapping[str, str], given: Arguments) -> None:
    check_shapes(given, shapes)


def _refused(first: str, second: str) -> tuple[Any, ...]:
    """Return calls that must be refused, each wrong in one respect."""
    return (
        spoiled("shapes", second, longer),
        spoiled("dtypes", second, other_dtype),
        spoiled("strides", first, strided),
        spoiled("devices", second, elsewhere),
    )


def _kernel(name: str, reference: Callable[..., Any], **fields: Any) -> KernelSpecification:
    """Return a specification with the fields that all element-wise kernels share."""
    typed = name.startswith("bias_") or name == "residual_add_bias"
    return KernelSpecification(
        name=name,
        builder="InferenceBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32", "float16", "bfloat16"),
        budget=_BUDGET,
        reference=reference,
        **{"attribute": f"{name}_{{dtype}}" if typed else "", **fields},
    )


def _bias_kernel(
    name: str,
    reference: Callable[..., Any],
    formula: Callable[[Arguments], BoundedValue],
    more: dict[str, dict[str, Any]],
    shapes: dict[str, str],
) -> KernelSpecification:
    """Return the specification of a kernel that adds a bias to ``input`` in place."""
    return _kernel(
        name,
        reference,
        samples=samples(partial(_biased, residual="residual" in shapes), {**_SHAPES, **more}),
        oracle=partial(_in_place, "input", formula),
        changes=("input",),
        validate=partial(_shaped, shapes),
        refusals=_refused("input", "bias"),
    )


_PAIR = {"input": ".h", "bias": "h"}

SPECIFICATIONS = (
    _bias_kernel("bias_add", bias_add, _sum_over_input, _SPECIAL, _PAIR),
    _bias_kernel("bias_gelu", bias_gelu, _gelu, _TAILS, _PAIR),
    _bias_kernel("bias_relu", bias_relu, _relu, _SPECIAL, _PAIR),
    _bias_kernel(
        "bias_residual", bias_residual, _sum_over_input, {}, {"input": "bsh", "residual": "bsh", "bias": "h"}
    ),
    _kernel(
        "vector_add", vector_add, attribute="_vector_add",
        samples=samples(_added, {**_SHAPES, "whole": {"gamma": 1.0}}),
        oracle=partial(_in_place, "a", _vector), changes=("a",), validate=_validate_sum, refusals=_refused("a", "b"),
    ),
    _kernel(
        "gated_activation", gated_activation, samples=samples(_gate, _GATES), oracle=_gated, validate=_validate_gate,
        refusals=(*_refused("activation", "bias"), spoiled("functions", "actFun", put(1))),
    ),
    _kernel(
        "residual_add_bias", residual_add_bias, samples=samples(_ending, _ENDS),
        oracle=partial(_in_place, "residual", _layer_end), changes=("residual",), validate=_validate_end,
        refusals=_refused("residual", "final_bias"),
    ),
    _kernel(
        "moe_res_matmul", moe_res_matmul, samples=samples(_mixture, _SHAPES),
        oracle=partial(_in_place, "output", _experts), changes=("output",), validate=_validate_mixture,
        refusals=_refused("moe_res", "coef"),
    ),
)  # fmt: skip

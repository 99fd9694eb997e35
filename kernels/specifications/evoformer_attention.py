"""Evoformer attention, forward and backward (Jumper et al., 2021, AlphaFold 2).

Every row of an alignment attends to itself. One bias exists for each key of a row, and one for each pair of positions,
which all rows share. Source: DeepSpeed's DS4Sci_EvoformerAttention, whose Python code allocates all tensors and calls
the two entry points. Implementations in use leave some points open. This specification decides:

- float32 works as 16-bit dtypes do. Any length and any number of channels are allowed.
- ``lse`` holds natural logarithms. It is +inf in the padding after a row's queries, and for a query whose keys are all
  hidden by -inf (as in FlashAttention 2, Dao, 2023, arXiv:2307.08691). The output of such a query is 0, and it
  contributes no gradient.
- ``delta`` is working memory of the kernel. Its content after the call is not defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.inference.decoding import probabilities
from conformance.kernels.inference.drawing import Draw, drawing, elsewhere, other_dtype, samples, spoiled, strided
from conformance.kernels.inference.formulas import wide
from conformance.kernels.inference.rounding import UNIT, BoundedValue
from conformance.kernels.inference.shapes import FLOATING
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification, Property

#: The last dimension of ``lse`` and ``delta`` is the number of queries, rounded up to a multiple of this.
_ROWS = 32
#: Einsum equations over tensors (batch, rows, positions, heads, channels): b, n, i or j, h, d; i are queries, j keys.
_PAIRS, _BY_KEYS, _BY_QUERIES = "bnihd,bnjhd->bnhij", "bnhij,bnjhd->bnihd", "bnhij,bnihd->bnjhd"
_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis in float32 (kernels/inference/rounding.py); weights, and the gradients of scores, "
    "may be stored in the dtype before they are multiplied",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, bias1: Tensor, bias2: Tensor, o: Tensor, lse: Tensor) -> None:
    """Write softmax(q kᵀ / √channels + bias1 + bias2) v to ``o``, and the logarithms of the softmax sums to ``lse``.

    q, k, v and o are (batch, rows, positions, heads, channels) of one dtype. ``bias1`` is (batch, rows, 1, 1,
    positions), one value for each key. ``bias2`` is (batch, 1, heads, positions, positions), one value for each query
    and key. Biases have the same dtype; one without elements means none. ``lse`` is float32 of shape (batch * rows,
    heads, positions rounded up to a multiple of 32).
    """
    scores = _scores(q, k, bias1, bias2)
    total = torch.logsumexp(scores, -1)
    # All keys hidden: with +inf every weight is exp(-inf) = 0 instead of NaN.
    total = torch.where(total == -torch.inf, torch.inf, total)
    o.copy_(torch.einsum(_BY_KEYS, torch.exp(scores - total[..., None]), wide(v)))
    lse.fill_(torch.inf)
    lse[..., : q.shape[2]] = total.flatten(0, 1)


def attention_bwd(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    delta: Tensor,
    bias1: Tensor,
    bias2: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    db1: Tensor,
    db2: Tensor,
) -> None:
    """Write the gradients of ``attention`` for the gradient ``do`` of its output ``o``.

    dq, dk and dv have the shape and dtype of q, k and v. ``db1`` and ``db2`` are float32 and arrive as zeros of their
    bias's shape; without elements, no gradient is requested. ``delta`` has the shape and dtype of ``lse``.
    """
    length, scale = q.shape[2], q.shape[4] ** -0.5
    upstream = wide(do)
    weights = torch.exp(_scores(q, k, bias1, bias2) - _of_queries(lse, q)[..., None])
    # Gradient of the softmax: the sum of each row of weights * d(weights) equals the sum over channels of do * o.
    along = (upstream * wide(o)).sum(-1).transpose(2, 3)
    changes = weights * (torch.einsum(_PAIRS, upstream, wide(v)) - along[..., None])
    delta[..., :length] = along.flatten(0, 1)
    dv.copy_(torch.einsum(_BY_QUERIES, weights, upstream))
    dq.copy_(torch.einsum(_BY_KEYS, changes, wide(k)) * scale)
    dk.copy_(torch.einsum(_BY_QUERIES, changes, wide(q)) * scale)
    if db1.numel():
        db1.copy_(changes.sum((2, 3))[:, :, None, None])
    if db2.numel():
        db2.copy_(changes.sum(1, keepdim=True))


def _scores(q: Tensor, k: Tensor, *biases: Tensor) -> Tensor:
    """Return the scores with all biases: (batch, rows, heads, queries, keys), in float32 or wider."""
    scores: Tensor = torch.einsum(_PAIRS, wide(q), wide(k)) * q.shape[4] ** -0.5
    for bias in biases:
        scores = scores + wide(bias) if bias.numel() else scores
    return scores


def _of_queries(sums: Tensor, q: Tensor) -> Tensor:
    """Return ``lse``-like sums without padding: (batch, rows, heads, positions)."""
    return sums[..., : q.shape[2]].reshape(*q.shape[:2], *sums.shape[1:-1], q.shape[2])


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def scores_of(given: Arguments) -> BoundedValue:
    """Return the scores with their error bounds."""
    q, k = given["q"], given["k"]
    found = BoundedValue.exact(q).contracted(_PAIRS, BoundedValue.exact(k), q.shape[4]).scaled(q.shape[4] ** -0.5)
    for name in ("bias1", "bias2"):
        if given[name].numel():
            found = found + BoundedValue.exact(given[name].expand(found.value.shape))
    return found


def attended(given: Arguments) -> tuple[BoundedValue, BoundedValue]:
    """Return the output, and the logarithm of each query's sum: (batch, rows, heads, positions)."""
    scores, length = scores_of(given), given["q"].shape[2]
    weights = probabilities(scores, torch.ones(scores.value.shape, dtype=torch.bool))
    top = scores.value.amax(-1)
    shifted = torch.exp(scores.value - torch.where(top.isfinite(), top, 0.0)[..., None])
    sums = torch.where(top == -torch.inf, torch.inf, shifted.sum(-1).log() + top)
    error = (weights.value * scores.error).sum(-1) + UNIT * (length + 8 + 8 * sums.abs())
    output = weights.stored(given["q"].dtype).contracted(_BY_KEYS, BoundedValue.exact(given["v"]), length)
    return output, BoundedValue(sums, torch.where(sums.isfinite(), error, 0.0))


def gradients(given: Arguments, output: BoundedValue, sums: BoundedValue) -> dict[str, BoundedValue]:
    """Return the gradients of q, k, v and both biases by the chain rule, from an output and sums with error bounds."""
    q, dtype, length = given["q"], given["q"].dtype, given["q"].shape[2]
    upstream, scale = BoundedValue.exact(given["do"]), q.shape[4] ** -0.5
    weights = _exponential(scores_of(given) - sums.moved(lambda tensor: tensor[..., None]))
    along = upstream.contracted("bnihd,bnihd->bnhi", output, q.shape[4]).moved(lambda tensor: tensor[..., None])
    brought = upstream.contracted(_PAIRS, BoundedValue.exact(given["v"]), q.shape[4])
    changes, stored = (weights * (brought - along)).stored(dtype), weights.stored(dtype)
    ones = torch.ones(q.shape[3], length), torch.ones(q.shape[1])
    return {
        "dq": changes.contracted(_BY_KEYS, BoundedValue.exact(given["k"]), length).scaled(scale),
        "dk": changes.contracted(_BY_QUERIES, BoundedValue.exact(q), length).scaled(scale),
        "dv": stored.contracted(_BY_QUERIES, upstream, length),
        "db1": changes.contracted("bnhij,hi->bnj", BoundedValue.exact(ones[0]), ones[0].numel()).moved(
            lambda tensor: tensor[:, :, None, None]
        ),
        "db2": changes.contracted("bnhij,n->bhij", BoundedValue.exact(ones[1]), len(ones[1])).moved(
            lambda tensor: tensor[:, None]
        ),
    }


def _exponential(scores: BoundedValue) -> BoundedValue:
    """Return exp(scores). Its relative error is the absolute error of the argument."""
    found = torch.exp(scores.value)
    relative = torch.expm1(scores.error) + 8 * UNIT * (1 + scores.value.abs())
    return BoundedValue(found, torch.where(found > 0, found * relative, 0.0))


def _forward_oracle(given: Arguments) -> Mapping[str, Expected]:
    output, sums = attended(given)
    return {"o": output.expected(given["q"].dtype), "lse": _padded(sums, given["lse"]).expected(torch.float32)}


def _padded(sums: BoundedValue, like: Tensor) -> BoundedValue:
    """Return the sums in the shape of ``lse``, padded with +inf."""
    value, error = torch.full(like.shape, torch.inf).double(), torch.zeros(like.shape).double()
    length = sums.value.shape[-1]
    value[..., :length], error[..., :length] = sums.value.flatten(0, 1), sums.error.flatten(0, 1)
    return BoundedValue(value, error)


def _backward_oracle(given: Arguments) -> Mapping[str, Expected]:
    sums = BoundedValue.exact(_of_queries(given["lse"], given["q"]))
    return _wanted(given, gradients(given, BoundedValue.exact(given["o"]), sums))


def _wanted(given: Arguments, found: Mapping[str, BoundedValue]) -> dict[str, Expected]:
    """Return the expected gradients; a gradient that is not requested has no elements."""
    nothing = Expected(torch.zeros(0).double())
    return {
        name: gradient.expected(given[name].dtype) if given[name].numel() else nothing
        for name, gradient in found.items()
    }


# --- samples ----------------------------------------------------------------------------------------------------------


def _forward(
    draw: Draw,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...] = (2, 3, 33, 2, 8),
    biases: str = "12",
    hidden: bool = False,
) -> Arguments:
    """Return arguments of ``attention``.

    With ``hidden`` every third key is hidden from all queries, and all keys from the queries of the last row.
    """
    batch, rows, length, heads, _ = shape
    nothing = torch.zeros(0, dtype=dtype)
    bias1 = draw(batch, rows, 1, 1, length)
    if hidden:
        bias1[..., 1::3] = -torch.inf
        bias1[:, -1] = -torch.inf
    bias2 = draw(batch, 1, heads, length, length)
    room = (length + _ROWS - 1) // _ROWS * _ROWS
    return {
        "q": draw(*shape), "k": draw(*shape), "v": draw(*shape), "bias1": bias1 if "1" in biases else nothing,
        "bias2": bias2 if "2" in biases else nothing, "o": torch.full(shape, 7.0, dtype=dtype),
        "lse": torch.full((batch * rows, heads, room), 7.0),
    }  # fmt: skip


def _backward(draw: Draw, dtype: torch.dtype, *, requested: str = "12", **settings: Any) -> Arguments:
    """Return arguments of ``attention_bwd``; output and sums come from the oracle, rounded to their dtypes."""
    ahead = _forward(draw, dtype, **settings)
    output, sums = attended(ahead)
    # From the oracle, so that the backward sample does not depend on the module's forward pass.
    ahead["o"].copy_(output.value)
    ahead["lse"].copy_(_padded(sums, ahead["lse"]).value)
    return _backward_of(ahead, draw(*ahead["q"].shape), requested)


def _backward_of(ahead: Arguments, upstream: Tensor, requested: str) -> Arguments:
    """Return arguments of ``attention_bwd`` for those of ``attention``; ``requested`` names biases with a gradient."""
    into = {f"d{name}": torch.full_like(ahead[name], 7.0) for name in "qkv"}
    for number in "12":
        bias = ahead[f"bias{number}"]
        wanted = number in requested and bias.numel()
        into[f"db{number}"] = torch.zeros(bias.shape if wanted else (0,), device=bias.device)
    kept = {name: ahead[name] for name in ("q", "k", "v", "o", "lse")}
    biases = {name: ahead[name] for name in ("bias1", "bias2")}
    return {"do": upstream, **kept, "delta": torch.zeros_like(ahead["lse"]), **biases, **into}


#: Lengths around 32 and 64, the block sizes of queries and keys in kernels in use.
_SAMPLES: dict[str, dict[str, Any]] = {
    "both": {},
    "first": {"biases": "1", "shape": (1, 2, 17, 3, 16)},
    "second": {"biases": "2"},
    "none": {"biases": "", "shape": (1, 1, 32, 1, 32)},
    "hidden": {"hidden": True},
    "65": {"shape": (1, 2, 65, 1, 64)},
}
_BACKWARD: dict[str, dict[str, Any]] = {**_SAMPLES, "unasked": {"requested": "2"}}


def _trains(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Check the backward pass with the output and sums of the same module's forward pass."""
    draw = drawing(generator, dtype)
    given, upstream = _forward(draw, dtype), draw(2, 3, 33, 2, 8)
    ahead = {name: tensor.to(device) for name, tensor in given.items()}

    functions.attention(*ahead.values())
    backward = _backward_of(ahead, upstream.to(device), "12")
    functions.attention_bwd(*backward.values())

    output, sums = attended(given)
    found = gradients({**given, "do": upstream}, output.stored(dtype), sums.stored(torch.float32))
    for name, expected in _wanted(backward, found).items():
        yield name, backward[name], expected


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _check(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors that do not fit ``q`` of (batch, rows, positions, heads, channels)."""
    q = check_tensor("q", given["q"], dtypes=FLOATING)
    if q.dim() != 5:
        raise wrong("q", "shape (batch, rows, positions, heads, channels)", tuple(q.shape))
    for name in ("k", "v", "o", "do", "dq", "dk", "dv"):
        if name in given:
            check_tensor(name, given[name], dtypes=(q.dtype,), like=q, device=q.device)
    batch, rows, length, heads, _ = q.shape
    shapes = {"1": (batch, rows, 1, 1, length), "2": (batch, 1, heads, length, length)}
    for number, shape in shapes.items():
        bias = check_tensor(f"bias{number}", given[f"bias{number}"], dtypes=(q.dtype,), device=q.device)
        if bias.numel() and tuple(bias.shape) != shape:
            raise wrong(f"bias{number}", f"shape {shape}, or no elements", tuple(bias.shape))
        if "do" in given:
            _check_gradient(f"db{number}", given[f"db{number}"], bias)
    room = (batch * rows, heads, (length + _ROWS - 1) // _ROWS * _ROWS)
    for name in ("lse", "delta"):
        if name in given:
            sums = check_tensor(name, given[name], dtypes=(torch.float32,), device=q.device)
            if tuple(sums.shape) != room:
                raise wrong(name, f"shape {room}", tuple(sums.shape))


def _check_gradient(name: str, gradient: object, bias: Tensor) -> None:
    found = check_tensor(name, gradient, dtypes=(torch.float32,), device=bias.device)
    if found.numel() and found.shape != bias.shape:
        raise wrong(name, f"shape {tuple(bias.shape)} of its bias, or no elements", tuple(found.shape))


_REFUSED = (
    spoiled("places", "k", lambda key: key[:, :, :-1].contiguous()),
    spoiled("first-shape", "bias1", lambda bias: bias[..., 0, :]),
    spoiled("second-shape", "bias2", lambda bias: bias.expand(-1, 3, -1, -1, -1).contiguous()),
    spoiled("dtypes", "bias2", other_dtype),
    spoiled("devices", "v", elsewhere),
    spoiled("strides", "q", strided),
)
_COMMON: dict[str, Any] = {
    "builder": "EvoformerAttnBuilder", "mode": Mode.TRAINING, "dtypes": ("float32", "float16", "bfloat16"),
    "budget": _BUDGET, "validate": _check,
}  # fmt: skip

SPECIFICATIONS = (
    KernelSpecification(
        name="evoformer_attention",
        attribute="attention",
        samples=samples(_forward, _SAMPLES),
        oracle=_forward_oracle,
        reference=attention,
        changes=("o", "lse"),
        refusals=(*_REFUSED, spoiled("room", "lse", lambda sums: sums[..., :33].contiguous())),
        properties=(Property("trains", _trains),),
        **_COMMON,
    ),
    KernelSpecification(
        name="evoformer_attention_bwd",
        attribute="attention_bwd",
        samples=samples(_backward, _BACKWARD),
        oracle=_backward_oracle,
        reference=attention_bwd,
        changes=("dq", "dk", "dv", "db1", "db2"),
        scratch=("delta",),
        refusals=(
            *_REFUSED,
            spoiled("narrow", "db1", torch.Tensor.half),
            spoiled("gradients-shape", "db2", lambda gradient: gradient[0]),
            spoiled("room", "delta", lambda delta: delta[..., :33].contiguous()),
        ),
        **_COMMON,
    ),
)

"""Attention of the Evoformer (Jumper et al., 2021, AlphaFold 2): every row of an alignment attends to itself, with one
bias for each key of a row and one for each pair of places, which all rows share; forward and backward.

Source: DeepSpeed's DS4Sci_EvoformerAttention, whose Python code makes all tensors and calls the two entry points.
Where implementations in use leave it open, this is decided:

- float32 works as 16 bits do, and any length and number of channels.
- ``lse`` holds natural logarithms. Behind a row's queries, and where everything is hidden from a query by -inf, it is
  +inf (as in FlashAttention 2, Dao, 2023, arXiv:2307.08691); such a query's output is 0, and it passes on no gradient.
- ``delta`` is memory for the kernel. What is in it afterwards means nothing.
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
from conformance.kernels.inference.rounding import UNIT, Bounded
from conformance.kernels.inference.shapes import FLOATING
from conformance.kernels.specification import Arguments, ErrorBudget, Expected, KernelSpecification, Property

#: ``lse`` and ``delta`` have room for so many queries, or a multiple of them.
_ROWS = 32
#: (batch, rows, places, heads, channels) twice: queries by keys.
_PAIRS, _BY_KEYS, _BY_QUERIES = "bnihd,bnjhd->bnhij", "bnhij,bnjhd->bnihd", "bnhij,bnihd->bnjhd"
_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis in float32 (kernels/inference/rounding.py); weights, and the gradients of scores, "
    "may be stored in the dtype before they are multiplied",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, bias1: Tensor, bias2: Tensor, o: Tensor, lse: Tensor) -> None:
    """softmax(q kᵀ / √channels + bias1 + bias2) v into ``o``, and the logarithms of the softmax's sums into ``lse``.

    q, k, v and o are (batch, rows, places, heads, channels), of one dtype. ``bias1`` is (batch, rows, 1, 1, places),
    for each key; ``bias2`` (batch, 1, heads, places, places), for each query and key; in the same dtype, and without
    elements where there is none. ``lse`` is float32 of (batch * rows, heads, places rounded up to 32).
    """
    scores = _scores(q, k, bias1, bias2)
    total = torch.logsumexp(scores, -1)
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
    """The gradients behind ``attention``, for ``do`` of its output ``o``: into dq, dk, dv, and the biases' db1 and db2.

    dq, dk and dv are as q, k and v. ``db1`` and ``db2`` are float32, come as zeros of their bias's shape, and have no
    elements where no gradient is asked for. ``delta`` has the shape and dtype of ``lse``.
    """
    length, scale = q.shape[2], q.shape[4] ** -0.5
    given = wide(do)
    weights = torch.exp(_scores(q, k, bias1, bias2) - _of_queries(lse, q)[..., None])
    along = (given * wide(o)).sum(-1).transpose(2, 3)
    changes = weights * (torch.einsum(_PAIRS, given, wide(v)) - along[..., None])
    delta[..., :length] = along.flatten(0, 1)
    dv.copy_(torch.einsum(_BY_QUERIES, weights, given))
    dq.copy_(torch.einsum(_BY_KEYS, changes, wide(k)) * scale)
    dk.copy_(torch.einsum(_BY_QUERIES, changes, wide(q)) * scale)
    if db1.numel():
        db1.copy_(changes.sum((2, 3))[:, :, None, None])
    if db2.numel():
        db2.copy_(changes.sum(1, keepdim=True))


def _scores(q: Tensor, k: Tensor, *biases: Tensor) -> Tensor:
    """(batch, rows, heads, queries, keys), wide."""
    scores: Tensor = torch.einsum(_PAIRS, wide(q), wide(k)) * q.shape[4] ** -0.5
    for bias in biases:
        scores = scores + wide(bias) if bias.numel() else scores
    return scores


def _of_queries(sums: Tensor, q: Tensor) -> Tensor:
    """(batch, rows, heads, places) of what is (batch * rows, heads, places and more)."""
    return sums[..., : q.shape[2]].reshape(*q.shape[:2], *sums.shape[1:-1], q.shape[2])


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def scores_of(given: Arguments) -> Bounded:
    """Products, channel by channel, and biases."""
    q, k = given["q"], given["k"]
    found = Bounded.exact(q).contracted(_PAIRS, Bounded.exact(k), q.shape[4]).scaled(q.shape[4] ** -0.5)
    for name in ("bias1", "bias2"):
        if given[name].numel():
            found = found + Bounded.exact(given[name].expand(found.value.shape))
    return found


def attended(given: Arguments) -> tuple[Bounded, Bounded]:
    """The output, and the logarithm of each query's sum: (batch, rows, heads, places)."""
    scores, length = scores_of(given), given["q"].shape[2]
    weights = probabilities(scores, torch.ones(scores.value.shape, dtype=torch.bool))
    top = scores.value.amax(-1)
    shifted = torch.exp(scores.value - torch.where(top.isfinite(), top, 0.0)[..., None])
    sums = torch.where(top == -torch.inf, torch.inf, shifted.sum(-1).log() + top)
    error = (weights.value * scores.error).sum(-1) + UNIT * (length + 8 + 8 * sums.abs())
    output = weights.stored(given["q"].dtype).contracted(_BY_KEYS, Bounded.exact(given["v"]), length)
    return output, Bounded(sums, torch.where(sums.isfinite(), error, 0.0))


def gradients(given: Arguments, output: Bounded, sums: Bounded) -> dict[str, Bounded]:
    """By the chain rule, of q, k, v and both biases, for an output and sums that are known so well."""
    q, dtype, length = given["q"], given["q"].dtype, given["q"].shape[2]
    upstream, scale = Bounded.exact(given["do"]), q.shape[4] ** -0.5
    weights = _risen(scores_of(given) - sums.moved(lambda one: one[..., None]))
    along = upstream.contracted("bnihd,bnihd->bnhi", output, q.shape[4]).moved(lambda one: one[..., None])
    brought = upstream.contracted(_PAIRS, Bounded.exact(given["v"]), q.shape[4])
    changes, stored = (weights * (brought - along)).stored(dtype), weights.stored(dtype)
    ones = torch.ones(q.shape[3], length), torch.ones(q.shape[1])
    return {
        "dq": changes.contracted(_BY_KEYS, Bounded.exact(given["k"]), length).scaled(scale),
        "dk": changes.contracted(_BY_QUERIES, Bounded.exact(q), length).scaled(scale),
        "dv": stored.contracted(_BY_QUERIES, upstream, length),
        "db1": changes.contracted("bnhij,hi->bnj", Bounded.exact(ones[0]), ones[0].numel()).moved(
            lambda one: one[:, :, None, None]
        ),
        "db2": changes.contracted("bnhij,n->bhij", Bounded.exact(ones[1]), len(ones[1])).moved(
            lambda one: one[:, None]
        ),
    }


def _risen(scores: Bounded) -> Bounded:
    """exp, whose relative error is its argument's absolute one."""
    found = torch.exp(scores.value)
    relative = torch.expm1(scores.error) + 8 * UNIT * (1 + scores.value.abs())
    return Bounded(found, torch.where(found > 0, found * relative, 0.0))


def _forward_oracle(given: Arguments) -> Mapping[str, Expected]:
    output, sums = attended(given)
    return {"o": output.expected(given["q"].dtype), "lse": _padded(sums, given["lse"]).expected(torch.float32)}


def _padded(sums: Bounded, like: Tensor) -> Bounded:
    """As ``lse`` lies in memory: +inf behind the queries."""
    value, error = torch.full(like.shape, torch.inf).double(), torch.zeros(like.shape).double()
    length = sums.value.shape[-1]
    value[..., :length], error[..., :length] = sums.value.flatten(0, 1), sums.error.flatten(0, 1)
    return Bounded(value, error)


def _backward_oracle(given: Arguments) -> Mapping[str, Expected]:
    sums = Bounded.exact(_of_queries(given["lse"], given["q"]))
    return _wanted(given, gradients(given, Bounded.exact(given["o"]), sums))


def _wanted(given: Arguments, found: Mapping[str, Bounded]) -> dict[str, Expected]:
    """Nothing where no gradient is asked for."""
    nothing = Expected(torch.zeros(0).double())
    return {name: one.expected(given[name].dtype) if given[name].numel() else nothing for name, one in found.items()}


# --- samples ----------------------------------------------------------------------------------------------------------


def _forward(
    draw: Draw,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...] = (2, 3, 33, 2, 8),
    biases: str = "12",
    hidden: bool = False,
) -> Arguments:
    """Queries of the last row see no key at all if something is ``hidden``; others lose some."""
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


def _backward(draw: Draw, dtype: torch.dtype, *, asked: str = "12", **settings: Any) -> Arguments:
    """Output and sums are the oracle's, rounded."""
    ahead = _forward(draw, dtype, **settings)
    output, sums = attended(ahead)
    ahead["o"].copy_(output.value)
    ahead["lse"].copy_(_padded(sums, ahead["lse"]).value)
    return _asked(ahead, draw(*ahead["q"].shape), asked)


def _asked(ahead: Arguments, upstream: Tensor, asked: str) -> Arguments:
    """The arguments of ``attention_bwd``, behind those of ``attention``."""
    into = {f"d{name}": torch.full_like(ahead[name], 7.0) for name in "qkv"}
    for place in "12":
        bias = ahead[f"bias{place}"]
        wanted = place in asked and bias.numel()
        into[f"db{place}"] = torch.zeros(bias.shape if wanted else (0,), device=bias.device)
    kept = {name: ahead[name] for name in ("q", "k", "v", "o", "lse")}
    biases = {name: ahead[name] for name in ("bias1", "bias2")}
    return {"do": upstream, **kept, "delta": torch.zeros_like(ahead["lse"]), **biases, **into}


#: Lengths around 32 and 64, which kernels in use cut queries and keys into.
_SAMPLES: dict[str, dict[str, Any]] = {
    "both": {},
    "first": {"biases": "1", "shape": (1, 2, 17, 3, 16)},
    "second": {"biases": "2"},
    "none": {"biases": "", "shape": (1, 1, 32, 1, 32)},
    "hidden": {"hidden": True},
    "65": {"shape": (1, 2, 65, 1, 64)},
}
_BACKWARD: dict[str, dict[str, Any]] = {**_SAMPLES, "unasked": {"asked": "2"}}


def _trains(
    functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Expected]]:
    """Backward behind the same module's forward: what it keeps between the two is what it needs."""
    draw = drawing(generator, dtype)
    given, upstream = _forward(draw, dtype), draw(2, 3, 33, 2, 8)
    ahead = {name: tensor.to(device) for name, tensor in given.items()}

    functions.attention(*ahead.values())
    behind = _asked(ahead, upstream.to(device), "12")
    functions.attention_bwd(*behind.values())

    output, sums = attended(given)
    found = gradients({**given, "do": upstream}, output.stored(dtype), sums.stored(torch.float32))
    for name, expected in _wanted(behind, found).items():
        yield name, behind[name], expected


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _check(given: Arguments) -> None:
    q = check_tensor("q", given["q"], dtypes=FLOATING)
    if q.dim() != 5:
        raise wrong("q", "shape (batch, rows, places, heads, channels)", tuple(q.shape))
    for name in ("k", "v", "o", "do", "dq", "dk", "dv"):
        if name in given:
            check_tensor(name, given[name], dtypes=(q.dtype,), like=q, device=q.device)
    batch, rows, length, heads, _ = q.shape
    shapes = {"1": (batch, rows, 1, 1, length), "2": (batch, 1, heads, length, length)}
    for place, shape in shapes.items():
        bias = check_tensor(f"bias{place}", given[f"bias{place}"], dtypes=(q.dtype,), device=q.device)
        if bias.numel() and tuple(bias.shape) != shape:
            raise wrong(f"bias{place}", f"shape {shape}, or no elements", tuple(bias.shape))
        if "do" in given:
            _check_gradient(f"db{place}", given[f"db{place}"], bias)
    room = (batch * rows, heads, (length + _ROWS - 1) // _ROWS * _ROWS)
    for name in ("lse", "delta"):
        if name in given:
            sums = check_tensor(name, given[name], dtypes=(torch.float32,), device=q.device)
            if tuple(sums.shape) != room:
                raise wrong(name, f"shape {room}", tuple(sums.shape))


def _check_gradient(name: str, gradient: object, bias: Tensor) -> None:
    found = check_tensor(name, gradient, dtypes=(torch.float32,), device=bias.device)
    if found.numel() and found.shape != bias.shape:
        raise wrong(name, f"shape {tuple(bias.shape)}, as its bias, or no elements", tuple(found.shape))


_REFUSED = (
    spoiled("places", "k", lambda one: one[:, :, :-1].contiguous()),
    spoiled("first-shape", "bias1", lambda one: one[..., 0, :]),
    spoiled("second-shape", "bias2", lambda one: one.expand(-1, 3, -1, -1, -1).contiguous()),
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
        refusals=(*_REFUSED, spoiled("room", "lse", lambda one: one[..., :33].contiguous())),
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
            spoiled("gradients-shape", "db2", lambda one: one[0]),
            spoiled("room", "delta", lambda one: one[..., :33].contiguous()),
        ),
        **_COMMON,
    ),
)

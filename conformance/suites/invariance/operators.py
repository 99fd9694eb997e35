"""Operators that treat each row alone, so that the bits of a row need not depend on the other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

#: Elements of a row. It is a multiple of 16, so that rows of contiguous tensors are aligned alike.
WIDTH = 64
#: Terms of a long product, for which kernels split the sum where there are few rows.
LONG = 2048
_HEADS, _WORDS, _EXPERTS = 4, 97, 4

#: Function of rows and weights, or of places and the places before them.
Function = Callable[..., torch.Tensor]


class Weights:
    """Constant tensors of the operators: the same numbers at every call, drawn on the host by their shape."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._made: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, *shape: int) -> torch.Tensor:
        if shape not in self._made:
            generator = torch.Generator().manual_seed(sum(shape))
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
            self._made[shape] = numbers.to(self._dtype).to(self._device)
        return self._made[shape]


@dataclass(frozen=True)
class Operator:
    """Function of rows ``x`` of shape (rows, WIDTH). ``most`` rows bound the cost of expensive functions.

    With ``sequence``, the rows are the places of one sequence, and the function gets the places before them too.
    """

    name: str
    family: str
    function: Function
    most: int = 1 << 17
    sequence: bool = False


def _heads(x: torch.Tensor) -> torch.Tensor:
    """Return rows as (rows, heads, 1, size): a query of one place for each row."""
    return x.unflatten(-1, (_HEADS, -1)).unsqueeze(2)


def _attend(x: torch.Tensor, w: Weights) -> torch.Tensor:
    keys, values = (w(_HEADS, length, WIDTH // _HEADS) for length in (33, 34))
    size = x.shape[0]
    key, value = (part[:, :33].expand(size, -1, -1, -1) for part in (keys, values))
    return F.scaled_dot_product_attention(_heads(x), key, value).flatten(1)


def _causal(x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """Return causal attention of places to all places before them and to themselves."""
    every = torch.cat((past, x))
    query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(0, 1)[None] for part in (x, every, every * 0.5))
    seen = torch.ones(len(x), len(every), dtype=torch.bool, device=x.device).tril(len(past))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)[0].transpose(0, 1).flatten(1)


def _paged(x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """Return the same with the past in pages, which are gathered in their order."""
    pages = torch.arange(len(past), device=x.device)
    stored = torch.empty_like(past).index_copy(0, pages.flip(0), past)
    return _causal(x, stored[pages.flip(0)])


def _experts(x: torch.Tensor, w: Weights) -> torch.Tensor:
    chosen = F.linear(x, w(_EXPERTS, WIDTH)).softmax(-1).topk(2, dim=-1)
    matrices = w(_EXPERTS, WIDTH, 16)[chosen.indices]
    return (torch.einsum("nw,nkwo->nko", x, matrices) * chosen.values.unsqueeze(-1)).sum(1)


def _grouped(x: torch.Tensor, w: Weights) -> torch.Tensor:
    chosen = F.linear(x, w(_EXPERTS, WIDTH)).argmax(-1)
    result = x.new_zeros(x.shape[0], 16)
    for number, matrix in enumerate(w(_EXPERTS, WIDTH, 16)):
        mine = (chosen == number).nonzero().flatten()
        result = result.index_add(0, mine, x[mine] @ matrix)
    return result


def _layer(x: torch.Tensor, w: Weights, number: int) -> torch.Tensor:
    inner = F.linear(F.rms_norm(x, (WIDTH,)), w(2 * WIDTH + number, WIDTH))
    return x + F.linear(F.silu(inner[:, :WIDTH]) * inner[:, WIDTH : 2 * WIDTH], w(WIDTH, WIDTH))


def _rope(x: torch.Tensor, w: Weights) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    angle = w(1, WIDTH // 2)
    return torch.cat((left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()), -1)


def _embed(x: torch.Tensor, w: Weights) -> torch.Tensor:
    rows = (x[:, :4].detach().float() * 1000).long().abs() % _WORDS
    return F.embedding(rows, w(_WORDS, 16)).flatten(1) * x[:, :1]


def _bag(x: torch.Tensor, w: Weights) -> torch.Tensor:
    rows = (x[:, :8].detach().float() * 1000).long().abs() % _WORDS
    return F.embedding_bag(rows, w(_WORDS, 16), mode="sum") * x[:, :1]


def _simple(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda x, w: function(x)


_POINTWISE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "sinh": torch.sinh, "cosh": torch.cosh,
    "atan": torch.atan, "asinh": torch.asinh, "gelu": F.gelu, "gelu.tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "elu": F.elu, "selu": F.selu, "celu": F.celu,
    "relu": F.relu, "hardswish": F.hardswish, "logsigmoid": F.logsigmoid, "leaky_relu": F.leaky_relu,
    "log": lambda x: torch.log(x.abs() + 0.5), "log2": lambda x: torch.log2(x.abs() + 0.5),
    "log1p": lambda x: torch.log1p(x.abs()), "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.5), "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5),
    "pow": lambda x: torch.pow(x.abs() + 0.5, 1.7), "square": torch.square, "abs": torch.abs,
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5), "glu": F.glu,
}  # fmt: skip
_WITH_ROW: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": lambda x, r: x / (r.abs() + 0.5),
    "lerp": lambda x, r: torch.lerp(x, r, 0.3), "atan2": torch.atan2, "hypot": torch.hypot,
    "addcmul": lambda x, r: torch.addcmul(x, r, x, value=0.7),
    "addcdiv": lambda x, r: torch.addcdiv(x, r, x.abs() + 0.5, value=0.7),
    "maximum": torch.maximum, "where": lambda x, r: torch.where(x > 0, x * r, x - r),
    "cosine_similarity": lambda x, r: F.cosine_similarity(x, r.expand_as(x), dim=-1),
}  # fmt: skip
_REDUCED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1), "prod": lambda x: (x * 0.5 + 1).prod(-1),
    "var": lambda x: x.var(-1), "std": lambda x: x.std(-1), "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1), "amax": lambda x: x.amax(-1),
    "cumsum": lambda x: x.cumsum(-1), "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "normalize": F.normalize,
}  # fmt: skip


def operators() -> dict[str, Operator]:
    """Return all operators by their names."""
    found = [Operator(name, "pointwise", _simple(function)) for name, function in _POINTWISE.items()]
    found += [
        Operator(name, "pointwise", lambda x, w, function=function: function(x, w(1, WIDTH)))
        for name, function in _WITH_ROW.items()
    ]
    found += [Operator(name, "reduction", _simple(function)) for name, function in _REDUCED.items()]
    few = 1025
    found += [
        Operator("layer_norm", "norm", lambda x, w: F.layer_norm(x, (WIDTH,), w(WIDTH))),
        Operator("rms_norm", "norm", lambda x, w: F.rms_norm(x, (WIDTH,), w(WIDTH))),
        Operator("group_norm", "norm", lambda x, w: F.group_norm(x, 4)),
        Operator("rope", "pointwise", _rope),
        Operator("linear", "product", lambda x, w: F.linear(x, w(24, WIDTH))),
        Operator("mv", "product", lambda x, w: x @ w(WIDTH)),
        Operator("addmm", "product", lambda x, w: torch.addmm(w(24), x, w(WIDTH, 24))),
        Operator("linear.long", "product", lambda x, w: F.linear(x.repeat(1, LONG // WIDTH), w(24, LONG)), few),
        Operator("bmm", "product", lambda x, w: torch.bmm(x.unflatten(-1, (8, 8)), x.unflatten(-1, (8, 8))), few),
        Operator("conv1d", "product", lambda x, w: F.conv1d(x.unflatten(-1, (4, 16)), w(8, 4, 3)), few),
        Operator("conv2d", "product", lambda x, w: F.conv2d(x.unflatten(-1, (1, 8, 8)), w(4, 1, 3, 3)), few),
        Operator("attention", "attention", _attend, few),
        Operator("embedding", "embedding", _embed),
        Operator("embedding_bag", "embedding", _bag),
        Operator("moe.routed", "routing", _experts, few),
        Operator("moe.grouped", "routing", _grouped, few),
        Operator("model", "model", lambda x, w: _layer(_layer(x, w, 1), w, 2), few),
    ]
    return {operator.name: operator for operator in found}


def sequences() -> dict[str, Operator]:
    """Return the operators whose rows are the places of one sequence."""
    found = (Operator("attention.prefill", "attention", _causal, sequence=True),
             Operator("attention.paged", "attention", _paged, sequence=True))  # fmt: skip
    return {operator.name: operator for operator in found}

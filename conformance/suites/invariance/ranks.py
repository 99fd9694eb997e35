"""Operators that a group of ranks computes together, and the smallest group at which their bits change.

Every operator is cut as tensor parallelism cuts it. A rank alone computes the whole; then groups of more and more
ranks compute the same rows with the same weights. Every rank has the result and the gradient of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn import functional as F

from conformance.suites.rank_functions import Group

from .operators import WIDTH, Operator, Weights
from .surroundings import Both, Change, Subject, differs

#: Rows of each operator.
ROWS = 17
_HEADS, _WORDS, _INNER = 4, 96, 128


Parallel = Callable[[torch.Tensor, Weights, Group], torch.Tensor]


def _column(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    return group.beside(F.linear(group.enter(x), group.part(w(_INNER, WIDTH), 0)))


def _row(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    return group.add_up(F.linear(group.part(group.enter(x), 1), group.part(w(24, WIDTH), 1)))


def _mlp(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    x = group.enter(x)
    inner = F.silu(F.linear(x, group.part(w(_INNER, WIDTH), 0))) * F.linear(x, group.part(w(_INNER + 1, WIDTH)[1:], 0))
    return group.add_up(F.linear(inner, group.part(w(WIDTH, _INNER), 1)))


def _attention(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    x = group.enter(x)
    query, key, value = (
        F.linear(x, group.part(w(WIDTH + number, WIDTH)[number:], 0))
        .unflatten(-1, (_HEADS // group.size, -1))
        .transpose(0, 1)[None]
        for number in range(3)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)[0].transpose(0, 1).flatten(1)
    return group.add_up(F.linear(mixed, group.part(w(WIDTH, WIDTH), 1)))


def _embedding(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    """Return rows of a table, of which each rank has a part; the others add zeros. No bit need change."""
    table, words = group.part(w(_WORDS, 16), 0), (x[:, 0].detach().float() * 1000).long().abs() % _WORDS
    own = words - group.number * len(table)
    inside = (own >= 0) & (own < len(table))
    rows = F.embedding(own.clamp(0, len(table) - 1), table) * inside.to(x.dtype).unsqueeze(1)
    return group.add_up(rows) * x[:, :16]


def _cross_entropy(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    """Return losses over a vocabulary of which each rank has a part."""
    scores = F.linear(group.enter(x), group.part(w(_WORDS, WIDTH), 0))
    largest = group.all_reduced(scores.detach().amax(-1), largest=True)
    total = group.add_up((scores - largest.unsqueeze(-1)).exp().sum(-1))
    right = torch.arange(len(x), device=x.device) % _WORDS - group.number * scores.shape[1]
    inside = (right >= 0) & (right < scores.shape[1])
    chosen = scores.gather(1, right.clamp(0, scores.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return total.log() + largest - group.add_up(chosen * inside.to(x.dtype))


def _rms_norm(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    mine = group.part(group.enter(x), 1)
    # Each rank uses the mean for its own columns, so the gradient of the mean is a sum over the ranks.
    mean = group.enter(group.add_up(mine.square().sum(-1, keepdim=True))) / WIDTH
    return group.beside(mine * (mean + 1e-5).rsqrt())


def _experts(x: torch.Tensor, w: Weights, group: Group) -> torch.Tensor:
    """Return the sum of the two best experts of each row; each rank has a part of the experts."""
    chosen = F.linear(x, w(4, WIDTH)).softmax(-1)
    kept = chosen * (chosen >= chosen.topk(2, dim=-1).values[:, 1:]).to(x.dtype)
    x, weights, matrices = group.enter(x), group.part(group.enter(kept), 1), group.part(w(4, WIDTH, 16), 0)
    return group.add_up((torch.einsum("nw,ewo->neo", x, matrices) * weights.unsqueeze(-1)).sum(1))


PARALLEL: Mapping[str, Parallel] = {
    "linear.by_columns": _column,
    "linear.by_rows": _row,
    "mlp": _mlp,
    "attention": _attention,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "rms_norm": _rms_norm,
    "experts": _experts,
}


def computed(name: str, group: Group, device: torch.device, dtype: torch.dtype) -> Both:
    """Return the results and the gradients of the rows, as a group computes them."""
    function = PARALLEL[name]
    operator = Operator(name, "rank", lambda x, w: function(x, w, group))
    subject = Subject(operator, device, dtype)
    return subject.both(subject.rows(ROWS))


def compare(
    groups: Iterator[Group] | list[Group], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, list[str]]:
    """Return which bits differ on this rank, and the operators without values.

    The differences are ones in a tensor of (operators, groups, passes).
    """
    groups, empty = list(groups), []
    found = torch.zeros(len(PARALLEL), len(groups), 2)
    for number, name in enumerate(PARALLEL):
        alone = computed(name, Group(1), device, dtype)
        values = torch.cat([alone[0].reshape(ROWS, -1), alone[1].reshape(ROWS, -1)], 1).float().cpu()  # type: ignore[union-attr]
        if not bool(values.isfinite().all()) or bool((values == values[:1]).all()):
            empty.append(name)
        for place, group in enumerate(groups):
            together = computed(name, group, device, dtype)
            for way in range(2):
                found[number, place, way] = float(differs(alone[way], together[way]))
    return found, empty


def changes_of(found: torch.Tensor, sizes: list[int]) -> list[Change]:
    """Return the smallest group at which each operator has other bits on any rank."""
    changes = []
    for number, name in enumerate(PARALLEL):
        first = next((place for place in range(len(sizes)) if bool(found[number, place].any())), None)
        if first is not None:
            way = "forward" if bool(found[number, first, 0]) else "backward"
            changes.append(Change(name, "rank", sizes[first], way))
    return changes

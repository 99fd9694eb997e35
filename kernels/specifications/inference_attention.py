"""Softmax over attention scores, and attention with a key-value cache.

Implementations in use disagree on some points. This specification decides:

* A query sees the same keys, whether its token came with a prompt or alone. A window of w is the last w tokens,
  including the query's own token. (CUDA's kernel uses w - 1 in decoding.)
* With more keys than queries, the last query is at the position of the last key.
* A row in which all keys are hidden gives zeros, never NaN.
* Scale and ALiBi apply in float32 too. (CUDA's float32 kernel drops them.)
* ``num_kv`` is the number of key heads, not the number of their repetitions.
* ``is_prompt`` also starts a sequence of one token. A call without tokens is refused.
* Positions count the tokens in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_number, check_tensor, wrong
from conformance.kernels.inference import attention
from conformance.kernels.inference.decoding import PROPERTIES, oracle, probabilities
from conformance.kernels.inference.drawing import Draw, elsewhere, other_dtype, put, samples, spoiled, strided
from conformance.kernels.inference.formulas import rotated, wide
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.inference.shapes import FLOATING, split_heads
from conformance.kernels.inference.workspace import FUNCTIONS, WORKSPACE
from conformance.kernels.specification import WORDS, Arguments, ErrorBudget, Expected, KernelSpecification

_BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=1.0,
    source="running error analysis in float32 (kernels/inference/rounding.py): the error of a score is the relative "
    "error of its weight; implementations add 1e-6 to the sum; scores, weights and rotated keys may be stored in the "
    "dtype",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def softmax(
    attn_scores: Tensor,
    attn_mask: Tensor | None,
    alibi: Tensor | None,
    triangular: bool,
    recompute: bool,
    local_attention: bool,
    window_size: int,
    async_op: bool,
    layer_scale: float,
    head_offset: int,
    mp_size: int,
) -> Tensor:
    """Write attention weights over ``attn_scores``, and return it.

    Weights are softmax(scores * layer_scale + alibi + mask). ``attn_scores`` is (batch, heads, queries, keys).
    ``attn_mask`` is added to the scores; it is (batch, keys) or (batch, 1, 1 or queries, keys). ``alibi`` (Press et
    al., 2022, arXiv:2108.12409) is (batch * heads of all ``mp_size`` ranks, 1, keys); the heads of this rank start at
    ``head_offset``. A mask or ALiBi with fewer than two dimensions means none. ``triangular`` hides later keys.
    ``local_attention`` hides all but the last ``window_size`` keys. ``recompute`` and ``async_op`` have no effect.
    """
    batch, heads, queries, keys = attn_scores.shape
    shifts = None
    if alibi is not None and alibi.dim() > 1:
        shifts = wide(alibi).reshape(batch, heads * mp_size, 1, keys)[:, head_offset : head_offset + heads]
    mask = attention.mask_of(attn_mask, attn_scores)
    window = window_size if local_attention else 0
    hidden = attention.hidden_keys(queries, keys, triangular, window, attn_scores.device)
    scores = wide(attn_scores) * layer_scale
    return attn_scores.copy_(attention.weights(scores, mask if mask is None else wide(mask), shifts, hidden))


def softmax_context(
    query_key_value: Tensor,
    attn_mask: Tensor | None,
    rotary_dim: int,
    rotate_half: bool,
    rotate_every_two: bool,
    heads: int,
    num_kv: int,
    norm_factor: float,
    triangular: bool,
    local_attention: bool,
    window_size: int,
    no_masking: bool,
    layer_id: int,
    num_layers: int,
    alibi: Tensor | None,
    rope_theta: float,
    is_prompt: bool,
    token_idx: None,
    position_ids: Tensor | None,
) -> list[Tensor]:
    """Return attention of new tokens to themselves and to the tokens in the workspace, and all keys and values.

    Vaswani et al., 2017, arXiv:1706.03762. Scores are norm_factor² q·k; weights are computed as in ``softmax``.

    * ``query_key_value`` is (batch, tokens, (heads + 2 * key heads) * channels): queries, keys, values. There are
      ``num_kv`` key heads, or as many as heads if it is below 1. Each serves heads / num_kv adjacent heads (Ainslie et
      al., 2023, arXiv:2305.13245).
    * Several tokens, or ``is_prompt``, start a sequence. One token continues it. The call for the last of
      ``num_layers`` layers ends the step.
    * ``rotate_half`` and ``rotate_every_two`` rotate queries and keys (see ``apply_rotary_pos_emb``), in halves or in
      adjacent channels. Positions are those in the sequence, or ``position_ids`` (batch, tokens). Without either flag
      nothing is rotated.
    * ``no_masking`` ignores the mask.

    The first result is (batch, tokens, heads * channels). Keys and values so far, each (batch, heads, all tokens,
    channels), are the second and third.
    """
    batch, count, _ = query_key_value.shape
    first = 0 if is_prompt or count > 1 else WORKSPACE.seen
    queries, keys, values = _heads(query_key_value, heads, num_kv)
    if rotary_dim > 0 and (rotate_half or rotate_every_two):
        device = query_key_value.device
        positions = torch.arange(first, first + count, device=device) if position_ids is None else position_ids
        queries = rotated(queries, positions, rotary_dim, rotate_half, rope_theta)
        keys = rotated(keys, positions, rotary_dim, rotate_half, rope_theta)
    shared = heads // keys.shape[1]
    # Repeated before they are kept, so that the workspace has a key head for each head.
    keys, values = (part.repeat_interleave(shared, dim=1).to(query_key_value.dtype) for part in (keys, values))
    keys, values = WORKSPACE.keep(layer_id, first, keys, values)
    scores = queries @ wide(keys).transpose(-1, -2) * norm_factor**2
    shifts = None if alibi is None or alibi.dim() < 2 else wide(alibi).reshape(batch, heads, 1, -1)
    mask = None if no_masking else attention.mask_of(attn_mask, scores)
    window = window_size if local_attention else 0
    hidden = attention.hidden_keys(count, first + count, triangular, window, query_key_value.device)
    found = attention.weights(scores, mask if mask is None else wide(mask), shifts, hidden) @ wide(values)
    # All layers of a step see the same number of earlier tokens, so it grows after the last one.
    if layer_id == num_layers - 1:
        WORKSPACE.seen = first + count
    return [found.transpose(1, 2).flatten(2).to(query_key_value.dtype), keys, values]


def _heads(together: Tensor, heads: int, num_kv: int) -> Iterator[Tensor]:
    """Yield queries, keys and values: (batch, heads or key heads, tokens, channels), in float32 or wider."""
    pairs = num_kv if num_kv > 0 else heads
    width = together.shape[2] // (heads + 2 * pairs)
    every = split_heads(wide(together), width)
    first = heads + pairs
    yield from (every[:, :heads], every[:, heads:first], every[:, first:])


# --- the oracle of softmax; that of attention is in kernels/inference/decoding.py ------------------------------------


def _softmax_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the probabilities in float64, with bounds of the rounding on the way."""
    found, (batch, heads, queries, keys) = BoundedValue.exact(given["attn_scores"]), given["attn_scores"].shape
    found = found.scaled(given["layer_scale"])
    if given["alibi"].dim() > 1:
        every, first = given["alibi"].reshape(batch, -1, 1, keys), given["head_offset"]
        found = found + BoundedValue.exact(every[:, first : first + heads].expand(found.value.shape))
    if given["attn_mask"].dim() > 1:
        rows = given["attn_mask"].reshape(batch, 1, -1, keys)
        found = found + BoundedValue.exact(rows.expand(found.value.shape))
    window = given["window_size"] if given["local_attention"] else keys
    seen = torch.zeros(queries, keys, dtype=torch.bool)
    for row in range(queries):
        last = keys - queries + row  # the last query is at the position of the last key
        end = last if given["triangular"] else keys - 1
        seen[row, max(0, last - window + 1) : end + 1] = True
    result = probabilities(found, seen).expected(given["attn_scores"].dtype)
    return {"attn_scores": result, "result": result}


# --- samples ----------------------------------------------------------------------------------------------------------

_NONE = torch.zeros(1)


def _scores(
    draw: Draw,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int, int, int] = (2, 3, 7, 7),
    mask: str = "",
    alibi: bool = False,
    triangular: bool = False,
    window: int = 0,
    scale: float = 1.0,
    ranks: int = 1,
) -> Arguments:
    """Return the arguments of a softmax over scores of (batch, heads, queries, keys)."""
    batch, heads, queries, keys = shape
    # ALiBi: each head has its slope, and the last key has no penalty (Press et al., 2022).
    slopes = torch.tensor([-(0.5**head) for head in range(heads * ranks)], dtype=torch.float64).repeat(batch)
    shifts = (slopes[:, None, None] * torch.arange(keys - 1, -1, -1)).to(dtype)
    return {
        "attn_scores": draw(*shape, scale=3.0), "attn_mask": _mask(mask, batch, queries, keys, dtype),
        "alibi": shifts if alibi else torch.zeros(1, dtype=dtype), "triangular": triangular, "recompute": False,
        "local_attention": window > 0, "window_size": max(window, 1), "async_op": False, "layer_scale": scale,
        "head_offset": heads * (ranks - 1), "mp_size": ranks,
    }  # fmt: skip


def _mask(kind: str, batch: int, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """Return an additive mask.

    "padding" hides leading keys by -10000, DeepSpeed's mask value; in the second sequence it hides all keys. "rows"
    hides keys by -inf, in some rows all of them.
    """
    if not kind:
        return torch.zeros(1, dtype=dtype)
    if kind == "padding":
        mask = torch.zeros(batch, keys, dtype=dtype)
        mask[0, : keys // 2] = -10000.0
        mask[1] = -10000.0
        return mask
    mask = torch.zeros(batch, 1, queries, keys, dtype=dtype)
    mask[0, :, :, 1::2] = -torch.inf
    mask[1, :, queries // 2] = -torch.inf
    return mask


_SOFTMAX: dict[str, dict[str, Any]] = {
    "plain": {},
    "triangular": {"triangular": True},
    "more-keys": {"triangular": True, "shape": (2, 3, 3, 7)},
    "padding": {"mask": "padding"},
    "infinite-mask": {"mask": "rows"},
    "infinite-mask-triangular": {"mask": "rows", "triangular": True},
    "alibi": {"alibi": True, "triangular": True, "scale": 0.125},
    "alibi-second-rank": {"alibi": True, "ranks": 2},
    "window": {"triangular": True, "window": 3},
    "window-one-query": {"window": 3, "shape": (2, 3, 1, 7)},
    "long": {"shape": (1, 1, 2, 1027)},
}


def _context(
    draw: Draw,
    dtype: torch.dtype,
    *,
    tokens: int = 6,
    heads: int = 4,
    num_kv: int = 0,
    width: int = 8,
    rotary: str = "",
    mask: str = "",
    window: int = 0,
    ids: bool = False,
) -> Arguments:
    """Return the arguments of a prompt's attention, with queries, keys and values in one tensor."""
    together = (heads + 2 * (num_kv or heads)) * width
    return {
        "query_key_value": draw(2, tokens, together), "attn_mask": _mask(mask, 2, tokens, tokens, dtype),
        "rotary_dim": width - 2 if rotary else 0, "rotate_half": rotary == "halves",
        "rotate_every_two": rotary == "pairs", "heads": heads, "num_kv": num_kv, "norm_factor": width**-0.25,
        "triangular": True, "local_attention": window > 0, "window_size": max(window, 1), "no_masking": not mask,
        "layer_id": 2, "num_layers": 3, "alibi": torch.zeros(1, dtype=dtype), "rope_theta": 10000.0,
        "is_prompt": True, "token_idx": None,
        "position_ids": torch.arange(3, 3 + tokens).expand(2, -1).contiguous() if ids else None,
    }  # fmt: skip


_CONTEXT: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"heads": 6, "num_kv": 2},
    "halves": {"rotary": "halves"},
    "pairs": {"rotary": "pairs", "num_kv": 1},
    "padding": {"mask": "padding"},
    "infinite-mask": {"mask": "rows"},
    "window": {"window": 3},
    "positions": {"rotary": "halves", "ids": True},
    "one-token": {"tokens": 1, "rotary": "halves"},
}


@contextmanager
def _allocated(functions: Any, given: Arguments) -> Iterator[None]:
    """Allocate a workspace that is larger than needed, for one call."""
    together, heads = given["query_key_value"], given["heads"]
    width = together.shape[2] // (heads + 2 * (given["num_kv"] or heads))
    word = WORDS.get(str(together.dtype).removeprefix("torch."), "fp32")
    allocate = getattr(functions, f"allocate_workspace_{word}")
    # Two sequences, three layers, one rank, at most 16 tokens; rank and the other lengths have no effect on values.
    allocate(heads * width, heads, 1, 2, 3, 1, False, 0, 16, 1)
    try:
        yield
    finally:
        functions.release_workspace()


# --- bad arguments, and the table -------------------------------------------------------------------------------------


def _validate_softmax(given: Arguments) -> None:
    """Raise ``UsageError`` for scores, masks or slopes that do not fit each other."""
    scores = check_tensor("attn_scores", given["attn_scores"], dtypes=FLOATING)
    if scores.dim() != 4:
        raise wrong("attn_scores", "shape (batch, heads, queries, keys)", tuple(scores.shape))
    batch, heads, queries, keys = scores.shape
    if queries > keys and (given["triangular"] or given["local_attention"]):
        raise wrong("attn_scores", f"at most {keys} queries, one for each key", queries)
    check_number("mp_size", given["mp_size"], at_least=1)
    attention.check_mask("attn_mask", given["attn_mask"], batch, queries, keys, scores)
    attention.check_alibi("alibi", given["alibi"], batch * heads * given["mp_size"], keys, scores)
    if not 0 <= given["head_offset"] <= heads * (given["mp_size"] - 1):
        raise wrong("head_offset", f"0 to {heads * (given['mp_size'] - 1)}", given["head_offset"])
    attention.check_window(given["local_attention"], given["window_size"])


def _validate_context(given: Arguments) -> None:
    """Raise ``UsageError`` for a call that does not fit its tensors or the workspace."""
    together = check_tensor("query_key_value", given["query_key_value"], dtypes=FLOATING)
    heads, pairs = given["heads"], given["num_kv"] if given["num_kv"] > 0 else given["heads"]
    if together.dim() != 3 or together.shape[2] % (heads + 2 * pairs):
        raise wrong("query_key_value", f"shape (batch, tokens, {heads + 2 * pairs} * channels)", tuple(together.shape))
    if heads % pairs:
        raise wrong("num_kv", f"a divisor of the {heads} heads", pairs)
    (batch, count, _), width = together.shape, together.shape[2] // (heads + 2 * pairs)
    if not count:
        raise wrong("query_key_value", "at least one token", count, "leave sequences without tokens out of the batch")
    if given["rotary_dim"] % 2 or given["rotary_dim"] > width:
        raise wrong("rotary_dim", f"an even number up to {width}", given["rotary_dim"])
    if given["rotate_half"] and given["rotate_every_two"]:
        raise wrong("rotate_every_two", "one kind of rotation", "rotate_half as well")
    if given["token_idx"] is not None:
        raise wrong("token_idx", "None, since the workspace counts the tokens", given["token_idx"])
    if given["layer_id"] >= given["num_layers"]:
        raise wrong("layer_id", f"a layer below {given['num_layers']}", given["layer_id"])
    first = 0 if given["is_prompt"] or count > 1 else WORKSPACE.seen
    if not given["no_masking"]:
        attention.check_mask("attn_mask", given["attn_mask"], batch, count, first + count, together)
    attention.check_alibi("alibi", given["alibi"], batch * heads, first + count, together)
    attention.check_window(given["local_attention"], given["window_size"])
    positions = given["position_ids"]
    if positions is not None and tuple(positions.shape) != (batch, count):
        raise wrong("position_ids", f"shape {(batch, count)}", tuple(positions.shape))


def _fits(given: Arguments) -> None:
    """Check the arguments, and that the workspace exists and is large enough."""
    _validate_context(given)
    heads, (batch, count, together) = given["heads"], given["query_key_value"].shape
    pairs = given["num_kv"] if given["num_kv"] > 0 else heads
    first = 0 if given["is_prompt"] or count > 1 else WORKSPACE.seen
    shape = (batch, heads, count, together // (heads + 2 * pairs))
    WORKSPACE.check(given["layer_id"], first, shape, given["query_key_value"].dtype)


_TYPED: dict[str, Any] = {
    "builder": "InferenceBuilder", "mode": Mode.INFERENCE, "dtypes": ("float32", "float16", "bfloat16"),
    "budget": _BUDGET,
}  # fmt: skip

SPECIFICATIONS = (
    KernelSpecification(
        name="softmax",
        attribute="softmax_{dtype}",
        samples=samples(_scores, _SOFTMAX),
        oracle=_softmax_oracle,
        reference=softmax,
        changes=("attn_scores",),
        validate=_validate_softmax,
        refusals=(
            spoiled("strides", "attn_scores", strided),
            spoiled("shapes", "attn_mask", lambda mask: mask.new_zeros(2, 8)),
            spoiled("dtypes", "attn_mask", lambda mask: other_dtype(mask.new_zeros(2, 7))),
            spoiled("devices", "attn_mask", lambda mask: elsewhere(mask.new_zeros(2, 7))),
            spoiled("slopes", "alibi", lambda alibi: alibi.new_zeros(3, 1, 7)),
        ),
        **_TYPED,
    ),
    KernelSpecification(
        name="softmax_context",
        attribute="softmax_context_{dtype}",
        samples=samples(_context, _CONTEXT),
        oracle=oracle,
        reference=softmax_context,
        validate=_fits,
        refusals=(
            spoiled("heads", "num_kv", put(10)),
            spoiled("strides", "query_key_value", strided),
            spoiled("layers", "layer_id", put(3)),
            spoiled("overflow", "query_key_value", lambda tensor: tensor.repeat(1, 3, 1)),
            spoiled("turning", "rotary_dim", put(3)),
        ),
        properties=PROPERTIES,
        companions=FUNCTIONS,
        session=_allocated,
        **_TYPED,
    ),
)

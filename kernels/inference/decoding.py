"""The float64 oracle of attention, and what holds between calls: decoding token by token is attention to everything.

The oracle knows no cache: it sees the whole sequence, turns pairs of channels as complex numbers, and asks of each
query which keys it may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.inference.drawing import drawing
from conformance.kernels.inference.rounding import UNIT, Bounded
from conformance.kernels.specification import WORDS, Arguments, Expected, Property

#: Implementations add this to a row's sum, which is at least 1, so as not to divide by 0.
_ADDED = 1e-6


def probabilities(scores: Bounded, seen: Tensor) -> Bounded:
    """Softmax of what is ``seen``; zeros where nothing is, or everything is -inf.

    A weight's relative error is its score's absolute one, and the mean of all of them over the row.
    """
    value = torch.where(seen, scores.value, -torch.inf)
    top = value.amax(-1, keepdim=True)
    above = value - torch.where(top.isfinite(), top, 0.0)
    risen = torch.exp(above)
    whole = risen.sum(-1, keepdim=True)
    found = torch.where(whole > 0, risen / whole, 0.0)
    counted = found > 0
    relative = torch.where(counted, scores.error + 8 * UNIT * (1 + above.abs()), 0.0)
    shared = (found * relative).sum(-1, keepdim=True) + value.shape[-1] * UNIT + _ADDED
    return Bounded(found, torch.where(counted, found * (relative + shared), 0.0))


def turned(heads: Tensor, places: Tensor, rotary_dim: int, halves: bool, theta: float) -> Bounded:
    """(batch, heads, tokens, channels), the first channels as complex numbers times exp(i angle)."""
    half = rotary_dim // 2
    wide = heads.double()
    order = [*range(half), *range(half, rotary_dim)] if halves else [*range(0, rotary_dim, 2), *range(1, rotary_dim, 2)]
    real, imaginary = wide[..., order[:half]], wide[..., order[half:]]
    rates = torch.tensor([theta ** (-2.0 * pair / rotary_dim) for pair in range(half)], dtype=torch.float64)
    angles = places.double()[..., None] * rates
    angles = angles if angles.dim() == 2 else angles[:, None]
    product = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
    found, error = wide.clone(), torch.zeros_like(wide)
    found[..., order[:half]], found[..., order[half:]] = product.real, product.imag
    # The angle itself is known to a few roundings of its own size.
    own = (real.abs() + imaginary.abs()) * 16 * UNIT * (1 + angles)
    error[..., order[:half]], error[..., order[half:]] = own, own
    return Bounded(found, error)


def attended(given: Arguments, together: Tensor, places: Tensor | None = None) -> tuple[Bounded, Bounded, Tensor]:
    """All of a sequence (batch, tokens, ...): what each token gets, its keys, its values (batch, heads, ...)."""
    heads, dtype = given["heads"], together.dtype
    pairs = given["num_kv"] if given["num_kv"] > 0 else heads
    batch, tokens, channels = together.shape
    width = channels // (heads + 2 * pairs)
    each = together.reshape(batch, tokens, -1, width).permute(0, 2, 1, 3)
    whose = [head * pairs // heads for head in range(heads)]
    query, key = each[:, :heads], each[:, [heads + one for one in whose]]
    value = each[:, [heads + pairs + one for one in whose]]
    known, keyed = Bounded.exact(query), Bounded.exact(key)
    if given["rotary_dim"] and (given["rotate_half"] or given["rotate_every_two"]):
        where = torch.arange(tokens) if places is None else places
        settings = (given["rotary_dim"], given["rotate_half"], given["rope_theta"])
        known, keyed = (turned(one, where, *settings).stored(dtype) for one in (query, key))
    scores = known.contracted("bhqc,bhkc->bhqk", keyed, width).scaled(given["norm_factor"] ** 2).stored(dtype)
    for name, shape in (("alibi", (batch, heads, 1, -1)), ("attn_mask", (batch, 1, -1, tokens))):
        if given[name].dim() > 1 and not (name == "attn_mask" and given["no_masking"]):
            scores = scores + Bounded.exact(given[name].reshape(shape).expand(scores.value.shape))
    window = given["window_size"] if given["local_attention"] else tokens
    last = torch.arange(tokens)
    ahead = last[None] > last[:, None] if given["triangular"] else torch.zeros(tokens, tokens, dtype=torch.bool)
    seen = ~ahead & (last[None] > last[:, None] - window)
    found = probabilities(scores, seen).stored(dtype).contracted("bhqk,bhkc->bqhc", Bounded.exact(value), tokens)
    return found.moved(lambda one: one.reshape(batch, tokens, heads * width)), keyed, value


def oracle(given: Arguments) -> Mapping[str, Expected]:
    """Of a prompt."""
    together = given["query_key_value"]
    found, keys, values = attended(given, together, given["position_ids"])
    return {
        "result[0]": found.expected(together.dtype),
        "result[1]": keys.expected(together.dtype),
        "result[2]": Expected(values.double(), allowed=torch.zeros(values.shape).double(), dtype=together.dtype),
    }


# --- several calls ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """How attention is asked for in a property, and how many tokens come as a prompt."""

    num_kv: int = 0
    rotary: str = ""
    window: int = 0
    alibi: bool = False
    padded: bool = False
    prompt: int = 5
    heads: int = 4
    width: int = 8
    tokens: int = 9
    batch: int = 2
    layers: int = 3

    def arguments(self, dtype: torch.dtype) -> Arguments:
        """All that is the same in every call; mask and alibi for the whole sequence."""
        slopes = torch.tensor([0.5**head for head in range(self.heads)], dtype=torch.float64).repeat(self.batch)
        shifts = (slopes[:, None, None] * torch.arange(self.tokens)).to(dtype)
        mask = torch.zeros(self.batch, self.tokens, dtype=dtype)
        mask[0, :2] = -10000.0
        nothing = torch.zeros(1, dtype=dtype)
        return {
            "attn_mask": mask if self.padded else nothing, "rotary_dim": self.width if self.rotary else 0,
            "rotate_half": self.rotary == "halves", "rotate_every_two": self.rotary == "pairs", "heads": self.heads,
            "num_kv": self.num_kv, "norm_factor": self.width**-0.25, "triangular": True,
            "local_attention": self.window > 0, "window_size": max(self.window, 1), "no_masking": not self.padded,
            "alibi": shifts if self.alibi else nothing, "rope_theta": 10000.0, "num_layers": self.layers,
        }  # fmt: skip

    def sequences(self, generator: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
        """Queries, keys and values of all tokens, for each layer."""
        draw = drawing(generator, dtype)
        channels = (self.heads + 2 * (self.num_kv or self.heads)) * self.width
        return [draw(self.batch, self.tokens, channels) for _ in range(self.layers)]


_ORDER = (
    "attn_mask", "rotary_dim", "rotate_half", "rotate_every_two", "heads", "num_kv", "norm_factor", "triangular",
    "local_attention", "window_size", "no_masking", "layer_id", "num_layers", "alibi", "rope_theta", "is_prompt",
    "token_idx", "position_ids",
)  # fmt: skip
Seen = Iterable[tuple[str, Tensor, Expected]]


@dataclass
class Session:
    """One workspace, and the sequences that go through it."""

    functions: Any
    device: torch.device
    setting: Setting
    layers: list[Tensor]

    def allocate(self) -> None:
        one, word = self.setting, WORDS[str(self.layers[0].dtype).removeprefix("torch.")]
        # DeepSpeed's order: hidden, heads, prompt, batch, layers, ranks, external cache, rank, most and least tokens.
        arguments = (
            one.heads * one.width,
            one.heads,
            min(one.prompt, one.tokens),
            one.batch,
            one.layers,
            1,
            False,
            0,
            one.tokens,
            1,
        )
        getattr(self.functions, f"allocate_workspace_{word}")(*arguments)

    def steps(self, what: str, prompt: int, *, said: bool = True, begun: bool = False) -> Seen:
        """So many tokens as a prompt, the others one by one, through all layers.

        ``said`` is whether it is said to be a prompt; one that has ``begun`` has gone through already.
        """
        starts = [*([] if begun else [0]), *range(prompt, self.setting.tokens)]
        dtype = self.layers[0].dtype
        function = getattr(self.functions, f"softmax_context_{WORDS[str(dtype).removeprefix('torch.')]}")
        given = self.setting.arguments(dtype)
        wanted = [attended(given, whole) for whole in self.layers]
        for begin, end in zip(starts, [*starts[1:], self.setting.tokens], strict=True):
            for layer, whole in enumerate(self.layers):
                part = whole[:, begin:end].contiguous().to(self.device)
                call = {**given, "layer_id": layer, "is_prompt": said and begin == 0}
                result = function(part, *(self._cut(call, name, end) for name in _ORDER))
                told = f"{what}: tokens {begin} to {end - 1} of layer {layer}"
                found = wanted[layer][0].moved(partial(_part, 1, begin, end))
                yield told, result[0], found.expected(dtype)
                keys = wanted[layer][1].moved(partial(_part, 2, 0, end))
                yield f"{told}: the keys so far", result[1], keys.expected(dtype)

    def _cut(self, call: Arguments, name: str, end: int) -> Any:
        """Mask and alibi reach to the last token that is there."""
        value = call.get(name)
        if isinstance(value, Tensor) and value.dim() > 1:
            value = value[..., :end].contiguous()
        return value.to(self.device) if isinstance(value, Tensor) else value


def _part(dimension: int, begin: int, end: int, tensor: Tensor) -> Tensor:
    return tensor.narrow(dimension, begin, end - begin)


def _decodes(setting: Setting) -> Callable[..., Seen]:
    """A prompt, then token by token."""

    def run(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Seen:
        session = Session(functions, device, setting, setting.sequences(generator, dtype))
        session.allocate()
        try:
            yield from session.steps("decoding", setting.prompt)
        finally:
            functions.release_workspace()

    return run


def _starts_anew(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Seen:
    """A second prompt, a reset, and a workspace that was released and taken again begin a sequence each."""
    setting = Setting(rotary="halves", tokens=4, layers=2)
    session = Session(functions, device, setting, setting.sequences(generator, dtype))
    session.allocate()
    try:
        yield from session.steps("a prompt", 2)
        yield from session.steps("another prompt", 3)
        functions.reset_cache()
        yield from session.steps("after a reset", 1, said=False)
        yield from session.steps("a prompt of one token", 1)
        functions.release_workspace()
        if functions.retake_workspace() is False:
            raise AssertionError("retake_workspace() says that there is none, after it was released")
        yield from session.steps("after it was retaken", 3)
    finally:
        functions.release_workspace()


PROPERTIES = (
    Property("decoding", _decodes(Setting())),
    Property("decoding-grouped-halves", _decodes(Setting(num_kv=2, rotary="halves"))),
    Property("decoding-pairs-alibi", _decodes(Setting(num_kv=1, rotary="pairs", alibi=True))),
    Property("decoding-window-padded", _decodes(Setting(window=3, padded=True))),
    Property("starts-anew", _starts_anew),
)

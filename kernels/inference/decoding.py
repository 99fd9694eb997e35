"""Float64 oracle of attention, and its properties: decoding token by token equals attention over the whole sequence.

The oracle has no cache. It gets the whole sequence, rotates pairs of channels as complex numbers, and decides for each
query which keys are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.inference.drawing import drawing
from conformance.kernels.inference.rounding import UNIT, BoundedValue
from conformance.kernels.specification import WORDS, Arguments, Expected, Property

#: Implementations add this to a row's sum, which is at least 1, to avoid a division by 0.
_ADDED = 1e-6


def probabilities(scores: BoundedValue, visible: Tensor) -> BoundedValue:
    """Return the softmax of the ``visible`` scores; zeros in rows where none is visible or all are -inf.

    The relative error of a weight is the absolute error of its score, plus the weighted mean of all those of its row.
    """
    value = torch.where(visible, scores.value, -torch.inf)
    top = value.amax(-1, keepdim=True)
    above = value - torch.where(top.isfinite(), top, 0.0)
    powers = torch.exp(above)
    sums = powers.sum(-1, keepdim=True)
    found = torch.where(sums > 0, powers / sums, 0.0)
    counted = found > 0
    relative = torch.where(counted, scores.error + 8 * UNIT * (1 + above.abs()), 0.0)
    shared = (found * relative).sum(-1, keepdim=True) + value.shape[-1] * UNIT + _ADDED
    return BoundedValue(found, torch.where(counted, found * (relative + shared), 0.0))


def turned(heads: Tensor, places: Tensor, rotary_dim: int, halves: bool, theta: float) -> BoundedValue:
    """Return (batch, heads, tokens, channels) with rotated channels: pairs as complex numbers times exp(i angle)."""
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
    # The computed angle has a few roundings relative to its own size, so the error grows with the position.
    own = (real.abs() + imaginary.abs()) * 16 * UNIT * (1 + angles)
    error[..., order[:half]], error[..., order[half:]] = own, own
    return BoundedValue(found, error)


def attended(
    given: Arguments, together: Tensor, places: Tensor | None = None
) -> tuple[BoundedValue, BoundedValue, Tensor]:
    """Return the attention output, keys and values (batch, heads, ...) of a whole sequence (batch, tokens, ...).

    ``together`` has queries, keys and values side by side in its last dimension.
    """
    heads, dtype = given["heads"], together.dtype
    pairs = given["num_kv"] if given["num_kv"] > 0 else heads
    batch, tokens, channels = together.shape
    width = channels // (heads + 2 * pairs)
    by_head = together.reshape(batch, tokens, -1, width).permute(0, 2, 1, 3)
    # Grouped-query attention: several heads of queries share a head of keys and values.
    shared = [head * pairs // heads for head in range(heads)]
    query, key = by_head[:, :heads], by_head[:, [heads + pair for pair in shared]]
    value = by_head[:, [heads + pairs + pair for pair in shared]]
    queries, keys = BoundedValue.exact(query), BoundedValue.exact(key)
    if given["rotary_dim"] and (given["rotate_half"] or given["rotate_every_two"]):
        where = torch.arange(tokens) if places is None else places
        settings = (given["rotary_dim"], given["rotate_half"], given["rope_theta"])
        queries, keys = (turned(tensor, where, *settings).stored(dtype) for tensor in (query, key))
    # The kernels scale queries and keys by norm_factor each, so the scores by its square.
    scores = queries.contracted("bhqc,bhkc->bhqk", keys, width).scaled(given["norm_factor"] ** 2).stored(dtype)
    for name, shape in (("alibi", (batch, heads, 1, -1)), ("attn_mask", (batch, 1, -1, tokens))):
        if given[name].dim() > 1 and not (name == "attn_mask" and given["no_masking"]):
            scores = scores + BoundedValue.exact(given[name].reshape(shape).expand(scores.value.shape))
    window = given["window_size"] if given["local_attention"] else tokens
    token = torch.arange(tokens)
    ahead = token[None] > token[:, None] if given["triangular"] else torch.zeros(tokens, tokens, dtype=torch.bool)
    visible = ~ahead & (token[None] > token[:, None] - window)
    weights = probabilities(scores, visible).stored(dtype)
    found = weights.contracted("bhqk,bhkc->bqhc", BoundedValue.exact(value), tokens)
    return found.moved(lambda tensor: tensor.reshape(batch, tokens, heads * width)), keys, value


def oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the expected results of a call with a prompt."""
    together = given["query_key_value"]
    found, keys, values = attended(given, together, given["position_ids"])
    return {
        "result[0]": found.expected(together.dtype),
        "result[1]": keys.expected(together.dtype),
        "result[2]": Expected(values.double(), allowed=torch.zeros(values.shape).double(), dtype=together.dtype),
    }


# --- properties of several calls --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodingSettings:
    """Settings of attention in a property, and how many of the ``tokens`` are the ``prompt``."""

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
        """Return the arguments that are the same in every call; mask and alibi are for the whole sequence."""
        slopes = torch.tensor([0.5**head for head in range(self.heads)], dtype=torch.float64).repeat(self.batch)
        shifts = (slopes[:, None, None] * torch.arange(self.tokens)).to(dtype)
        mask = torch.zeros(self.batch, self.tokens, dtype=dtype)
        mask[0, :2] = -10000.0  # hides the padding at the beginning of the first sequence
        nothing = torch.zeros(1, dtype=dtype)  # DeepSpeed passes a tensor of one dimension for no mask and no alibi
        return {
            "attn_mask": mask if self.padded else nothing, "rotary_dim": self.width if self.rotary else 0,
            "rotate_half": self.rotary == "halves", "rotate_every_two": self.rotary == "pairs", "heads": self.heads,
            "num_kv": self.num_kv, "norm_factor": self.width**-0.25, "triangular": True,
            "local_attention": self.window > 0, "window_size": max(self.window, 1), "no_masking": not self.padded,
            "alibi": shifts if self.alibi else nothing, "rope_theta": 10000.0, "num_layers": self.layers,
        }  # fmt: skip

    def sequences(self, generator: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
        """Return queries, keys and values of all tokens side by side, for each layer."""
        draw = drawing(generator, dtype)
        channels = (self.heads + 2 * (self.num_kv or self.heads)) * self.width
        return [draw(self.batch, self.tokens, channels) for _ in range(self.layers)]


#: Arguments of softmax_context after the first, in the order of its signature.
_ORDER = (
    "attn_mask", "rotary_dim", "rotate_half", "rotate_every_two", "heads", "num_kv", "norm_factor", "triangular",
    "local_attention", "window_size", "no_masking", "layer_id", "num_layers", "alibi", "rope_theta", "is_prompt",
    "token_idx", "position_ids",
)  # fmt: skip
Observations = Iterable[tuple[str, Tensor, Expected]]


@dataclass
class DecodingSession:
    """Workspace, and the sequences that are decoded with it."""

    functions: Any
    device: torch.device
    setting: DecodingSettings
    layers: list[Tensor]

    def allocate(self) -> None:
        """Allocate the workspace by the builder's function for the dtype."""
        setting, word = self.setting, WORDS[str(self.layers[0].dtype).removeprefix("torch.")]
        # DeepSpeed's order: hidden, heads, prompt, batch, layers, ranks, external cache, rank, most and least tokens.
        arguments = (
            setting.heads * setting.width,
            setting.heads,
            min(setting.prompt, setting.tokens),
            setting.batch,
            setting.layers,
            1,
            False,
            0,
            setting.tokens,
            1,
        )
        getattr(self.functions, f"allocate_workspace_{word}")(*arguments)

    def steps(self, what: str, prompt: int, *, marks_prompt: bool = True, prompt_done: bool = False) -> Observations:
        """Run ``prompt`` tokens as a prompt and the others one by one through all layers; yield results and oracle.

        ``marks_prompt`` is passed as ``is_prompt``. If ``prompt_done``, the prompt has gone through all layers already.
        """
        starts = [*([] if prompt_done else [0]), *range(prompt, self.setting.tokens)]
        dtype = self.layers[0].dtype
        function = getattr(self.functions, f"softmax_context_{WORDS[str(dtype).removeprefix('torch.')]}")
        given = self.setting.arguments(dtype)
        wanted = [attended(given, whole) for whole in self.layers]
        for begin, end in zip(starts, [*starts[1:], self.setting.tokens], strict=True):
            for layer, whole in enumerate(self.layers):
                part = whole[:, begin:end].contiguous().to(self.device)
                call = {**given, "layer_id": layer, "is_prompt": marks_prompt and begin == 0}
                result = function(part, *(self._cut(call, name, end) for name in _ORDER))
                place = f"{what}: tokens {begin} to {end - 1} of layer {layer}"
                output = wanted[layer][0].moved(partial(_part, 1, begin, end))
                yield place, result[0], output.expected(dtype)
                keys = wanted[layer][1].moved(partial(_part, 2, 0, end))
                yield f"{place}: the keys so far", result[1], keys.expected(dtype)

    def _cut(self, call: Arguments, name: str, end: int) -> Any:
        """Return the argument ``name`` on the device; mask and alibi are cut after token ``end - 1``."""
        value = call.get(name)
        if isinstance(value, Tensor) and value.dim() > 1:
            value = value[..., :end].contiguous()
        return value.to(self.device) if isinstance(value, Tensor) else value


def _part(dimension: int, begin: int, end: int, tensor: Tensor) -> Tensor:
    return tensor.narrow(dimension, begin, end - begin)


def _decodes(setting: DecodingSettings) -> Callable[..., Observations]:
    """Return a property's function that runs a prompt, then token by token."""

    def run(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
        """Yield the observations of one decoding session, and release the workspace after it."""
        session = DecodingSession(functions, device, setting, setting.sequences(generator, dtype))
        session.allocate()
        try:
            yield from session.steps("decoding", setting.prompt)
        finally:
            functions.release_workspace()

    return run


def _starts_anew(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that a second prompt, a reset, and a workspace released and retaken each start a new sequence."""
    setting = DecodingSettings(rotary="halves", tokens=4, layers=2)
    session = DecodingSession(functions, device, setting, setting.sequences(generator, dtype))
    session.allocate()
    try:
        yield from session.steps("a prompt", 2)
        yield from session.steps("another prompt", 3)
        functions.reset_cache()
        yield from session.steps("after a reset", 1, marks_prompt=False)
        yield from session.steps("a prompt of one token", 1)
        functions.release_workspace()
        if functions.retake_workspace() is False:
            raise AssertionError("retake_workspace() returned False after a release; expected a workspace")
        yield from session.steps("after it was retaken", 3)
    finally:
        functions.release_workspace()


PROPERTIES = (
    Property("decoding", _decodes(DecodingSettings())),
    Property("decoding-grouped-halves", _decodes(DecodingSettings(num_kv=2, rotary="halves"))),
    Property("decoding-pairs-alibi", _decodes(DecodingSettings(num_kv=1, rotary="pairs", alibi=True))),
    Property("decoding-window-padded", _decodes(DecodingSettings(window=3, padded=True))),
    Property("starts-anew", _starts_anew),
)

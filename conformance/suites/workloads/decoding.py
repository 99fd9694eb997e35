"""Generation with the families: prompts, caches, and the whole forward pass to which decoding is compared."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import layers
from .comparing import bounds_of, check_choices, relative_error, within
from .data import held_out_text
from .families import Family
from .family_checks import LIMITS
from .family_loop import model_on
from .inputs import batches_of
from .loop import HOST, RunDevice, exact

PROMPTS, PROMPT_LENGTH, NEW_TOKENS = 3, 12, 24
#: Positions that are padding, by prompt.
PADDING = (5, 2, 0)


@dataclass(frozen=True)
class Decoded:
    """Generated tokens (prompts, length) on the host, and the float64 logits that chose the new ones."""

    tokens: torch.Tensor
    logits: torch.Tensor


def decoder_on(family: Family, run_device: RunDevice, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Any:
    """Return a model with widely spread weights, which says many different tokens.

    The oracle's weights are ``rounded`` to the dtype of the case first.
    """
    model = model_on(family, run_device, dtype, wide=True)
    if rounded is not None:
        model.to(rounded).to(dtype)
    return model


def prompts(family: Family) -> dict[str, torch.Tensor]:
    """Return the inputs of a prompt by name, on the host: tokens, or what an encoder reads."""
    if family.data == "pairs":
        inputs = batches_of("pairs", 4)[0][0]
        return {"input_ids": inputs["input_ids"][:PROMPTS], "attention_mask": inputs["attention_mask"][:PROMPTS]}
    return {"input_ids": held_out_text(PROMPTS, PROMPT_LENGTH, seed=21)[0]}


def padded_mask() -> torch.Tensor:
    """Return the mask of prompts that are padded at the left."""
    return torch.stack([(torch.arange(PROMPT_LENGTH) >= padding).to(torch.int64) for padding in PADDING])


@torch.no_grad()
def generate(model: Any, run_device: RunDevice, inputs: dict[str, torch.Tensor], **options: Any) -> Decoded:
    """Continue the prompts greedily, or as ``options`` say."""
    placed = {name: tensor.to(run_device.device) for name, tensor in inputs.items()}
    # Without a mask the library would guess one from the padding token, which is also a byte of the text.
    placed.setdefault("attention_mask", torch.ones_like(placed["input_ids"]))
    settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": 0, "output_logits": True}
    settings |= options
    longest = placed["input_ids"].shape[1] + settings["max_new_tokens"]
    given = model.generate(
        **placed, **settings, stopping_criteria=[functools.partial(_not_above, longest)], return_dict_in_generate=True
    )
    return Decoded(given.sequences.cpu(), exact(torch.stack(given.logits, dim=1)) if given.logits else torch.empty(0))


def _not_above(longest: int, tokens: torch.Tensor, _scores: Any, **_others: Any) -> torch.Tensor:
    """Stop no sequence; raise AssertionError above a length.

    The library asks the device whether all sequences have ended. A wrong answer would fill the memory without an end.
    """
    if tokens.shape[1] > longest:
        raise AssertionError(f"generation did not end at {longest} tokens")
    return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)


@torch.no_grad()
def whole_logits(
    family: Family, model: nn.Module, run_device: RunDevice, inputs: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Return the logits (prompts, NEW_TOKENS, tokens) of one forward pass without a cache that choose new tokens."""
    tokens = tokens.to(run_device.device)
    if family.data == "pairs":
        encoded = {name: tensor.to(run_device.device) for name, tensor in inputs.items()}
        output = model(**encoded, decoder_input_ids=tokens, use_cache=False)
    else:
        output = model(tokens, **_positions(model, inputs, tokens), use_cache=False)
    return exact(output.logits)[:, -NEW_TOKENS - 1 : -1]


def _positions(model: nn.Module, inputs: dict[str, torch.Tensor], tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the mask of padded prompts and the positions that follow from it; nothing without padding."""
    if "attention_mask" not in inputs:
        return {}
    mask = inputs["attention_mask"].to(tokens.device)
    mask = torch.cat((mask, mask.new_ones(len(mask), tokens.shape[1] - mask.shape[1])), dim=1)
    named = {"attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        named["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return named


def check_decoded(
    check: Any, family: Family, run_device: RunDevice, dtype: str, inputs: dict[str, torch.Tensor], decoded: Decoded
) -> None:
    """Check that each token is the oracle's best or a near-tie, and each logit the oracle's without a cache."""
    kind, bounds = getattr(torch, dtype), bounds_of(dtype)
    oracle, host = decoder_on(family, HOST, torch.float64, kind), decoder_on(family, HOST, kind)
    wanted = whole_logits(family, oracle, HOST, inputs, decoded.tokens)
    host_error = relative_error(whole_logits(family, host, HOST, inputs, decoded.tokens), wanted)

    different = decoded.tokens[:, -NEW_TOKENS:].unique().numel()
    check.that(
        different >= LIMITS["different_tokens"],
        f"only {different} different tokens come out, so that a wrong cache could not be seen",
    )
    error = relative_error(decoded.logits, wanted)
    try:
        within(check, "the logits of decoding with a cache", error, bounds.logits, host_error, bounds)
        allowed = max(bounds.near_tie, 2 * bounds.host * host_error)
        ties = check_choices(check, decoded.tokens[:, -NEW_TOKENS:], wanted, allowed)
    except AssertionError as failure:
        raise AssertionError(
            f"{failure}. {_wrong_layer(family, run_device, dtype, inputs, decoded.tokens)}"
        ) from failure
    check.metric("logit_error", error)
    check.metric("near_ties", ties)
    check.metric("different_tokens", different)


def _wrong_layer(
    family: Family, run_device: RunDevice, dtype: str, inputs: dict[str, torch.Tensor], tokens: torch.Tensor
) -> str:
    """Return a sentence about the first layer that is wrong in decoding the same tokens with a cache."""
    kind, bounds = getattr(torch, dtype), bounds_of(dtype)
    device, host = decoder_on(family, run_device, kind), decoder_on(family, HOST, kind)
    oracle = decoder_on(family, HOST, torch.float64, kind)

    def run(model: Any) -> None:
        place = run_device if model is device else HOST
        forced = tokens.to(place.device)

        def choose(row: int, seen: torch.Tensor) -> list[int]:
            return [int(forced[row, min(len(seen), forced.shape[1] - 1)])]

        generate(model, place, inputs, prefix_allowed_tokens_fn=choose)

    return layers.first_wrong(device, host, oracle, run, bounds.logits, bounds.host)


def _prompt_of_one(family: Family) -> dict[str, torch.Tensor]:
    return {"input_ids": prompts(family)["input_ids"][:1]}


def check_beams(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Compare the best sequences of beam search with a cache, without one, and on the host in float64."""
    inputs, options = prompts(family), {"num_beams": 3, "output_logits": False}
    model = decoder_on(family, run_device, getattr(torch, dtype))
    cached = generate(model, run_device, inputs, **options).tokens
    uncached = generate(model, run_device, inputs, use_cache=False, **options).tokens
    oracle = decoder_on(family, HOST, torch.float64, getattr(torch, dtype))
    wanted = generate(oracle, HOST, inputs, **options).tokens

    different = wanted[:, -NEW_TOKENS:].unique().numel()
    check.that(different >= LIMITS["different_tokens"], f"the oracle gives only {different} different tokens")
    check.equal(cached, wanted, "the sequences of beam search with a cache")
    check.equal(uncached, wanted, "the sequences of beam search without a cache")


def check_speculation(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Compare decoding with a smaller assistant, and with guesses from the prompt, with greedy decoding."""
    inputs, kind = _prompt_of_one(family), getattr(torch, dtype)
    model = decoder_on(family, run_device, kind)
    greedy = generate(model, run_device, inputs, output_logits=False).tokens
    assistant = _assistant(model, run_device)
    assisted = generate(model, run_device, inputs, assistant_model=assistant, output_logits=False).tokens
    looked_up = generate(model, run_device, inputs, prompt_lookup_num_tokens=3, output_logits=False).tokens

    check.that(greedy.unique().numel() >= LIMITS["different_tokens"], "greedy decoding repeats few tokens")
    wanted = generate(decoder_on(family, HOST, torch.float64, kind), HOST, inputs, output_logits=False).tokens
    check.equal(greedy, wanted, "the tokens of greedy decoding")
    check.equal(assisted, greedy, "the tokens of speculative decoding with an assistant")
    check.equal(looked_up, greedy, "the tokens of speculative decoding from the prompt")


def _assistant(model: Any, run_device: RunDevice) -> Any:
    """Return a model that guesses right often, but not always: the same weights with some noise."""
    import copy

    assistant = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in assistant.parameters():
            noise = 0.02 * torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(run_device.device, parameter.dtype))
    return assistant


def cache_name(model: nn.Module) -> str:
    """Return what a model's argument and result with its keys and values are called.

    transformers 5.24 renamed ``past_key_values`` to ``cache``, and warns of the old name.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.no_grad()
def check_long_context(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Compare the last logits of a long text that is read at once and in chunks with the oracle's."""
    length, chunk, last = 4096, 512, 32
    text = held_out_text(1, length, seed=22)[0]
    kind, bounds = getattr(torch, dtype), bounds_of(dtype)
    model, host = (
        model_on(family, place, kind, wide=True, max_position_embeddings=length) for place in (run_device, HOST)
    )
    oracle = model_on(family, HOST, torch.float64, wide=True, max_position_embeddings=length).to(kind).double()

    wanted = exact(oracle(text, logits_to_keep=last).logits)
    host_error = relative_error(exact(host(text, logits_to_keep=last).logits), wanted)
    placed = text.to(run_device.device)
    whole = exact(model(placed, logits_to_keep=last).logits)
    name = cache_name(model)
    cache = {name: None}
    for start in range(0, length, chunk):
        output = model(placed[:, start : start + chunk], **cache, use_cache=True, logits_to_keep=last)
        cache = {name: getattr(output, name)}
    chunked = exact(output.logits)

    within(check, "the logits of a long text", relative_error(whole, wanted), bounds.logits, host_error, bounds)
    within(
        check, "the logits of a long text in chunks", relative_error(chunked, wanted), bounds.logits, host_error, bounds
    )
    check.metric("logit_error", relative_error(chunked, wanted))

"""Cases of generation: each way to decode gives the tokens and logits of one forward pass without a cache."""

from __future__ import annotations

import torch

from conformance.plan.case import cases

from . import decoding, paged
from .families import families
from .loop import RunDevice
from .planned import planned_families

DECODERS = ("llama", "qwen3", "gpt2", "mixtral", "deepseek", "gemma", "bloom", "mamba", "t5")


def _cases(what, names, dtypes=("float32", "bfloat16", "float16")):
    """Return the cases of some families; a near-tie of a router changes everything after it in 16 bits."""
    narrow = planned_families(what, "inference", dtypes=dtypes, having=lambda f: f.name in names and not f.routed)
    routed = planned_families(what, "inference", dtypes=["float32"], having=lambda f: f.name in names and f.routed)
    return lambda: [*narrow(), *routed()]


def _decoded(case, accelerator, device, check, inputs=None, **options):
    family, run_device = families()[case.id.split(".")[1]], RunDevice(device, accelerator)
    inputs = inputs or decoding.prompts(family)
    model = decoding.decoder_on(family, run_device, getattr(torch, case.dtype))

    decoded = decoding.generate(model, run_device, inputs, **options)

    decoding.check_decoded(check, family, run_device, case.dtype, inputs, decoded)
    return run_device, model, decoded


@cases(_cases("greedy", DECODERS))
def test_greedy(accelerator, device, case, check):
    """Greedy generation with a dynamic cache gives the tokens and logits of a whole forward pass."""
    _decoded(case, accelerator, device, check)


@cases(_cases("static_cache", ("llama", "qwen3", "gpt2", "mixtral", "gemma")))
def test_static_cache(accelerator, device, case, check):
    """Generation with a static cache gives the tokens and logits of a whole forward pass."""
    _decoded(case, accelerator, device, check, cache_implementation="static")


@cases(_cases("left_padded", ("llama", "qwen3", "gpt2", "mixtral", "gemma")))
def test_left_padded(accelerator, device, case, check):
    """Prompts of different lengths, padded at the left, are continued as each prompt alone."""
    inputs = {**decoding.prompts(families()["llama"]), "attention_mask": decoding.padded_mask()}

    run_device, model, decoded = _decoded(case, accelerator, device, check, inputs)

    if case.dtype == "float32":
        for row, padding in enumerate(decoding.PADDING):
            alone = {"input_ids": inputs["input_ids"][row : row + 1, padding:]}
            single = decoding.generate(model, run_device, alone)
            check.equal(
                single.tokens[0, -decoding.NEW_TOKENS :], decoded.tokens[row, -decoding.NEW_TOKENS :],
                f"prompt {row} alone and padded",
            )  # fmt: skip


@cases(_cases("chunked_prefill", ("llama", "qwen3", "gemma", "mixtral"), dtypes=("float32", "bfloat16")))
def test_chunked_prefill(accelerator, device, case, check):
    """A prompt that is read in chunks is continued as one that is read at once."""
    _decoded(case, accelerator, device, check, prefill_chunk_size=5)


@cases(_cases("beam", ("llama", "gpt2", "gemma", "mixtral"), dtypes=("float32",)))
def test_beam(accelerator, device, case, check):
    """Beam search finds the same sequences with a cache, without one, and in float64 on the host."""
    decoding.check_beams(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(_cases("speculative", ("llama", "gemma", "qwen3"), dtypes=("float32",)))
def test_speculative(accelerator, device, case, check):
    """Speculative decoding accepts exactly the tokens of greedy decoding."""
    decoding.check_speculation(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(_cases("long_context", ("llama", "gemma"), dtypes=("float32", "bfloat16")))
def test_long_context(accelerator, device, case, check):
    """A context of thousands of tokens gives the same logits in chunks and at once."""
    decoding.check_long_context(check, _family(case), RunDevice(device, accelerator), case.dtype)


def _family(case):
    return families()[case.id.split(".")[1]]


@cases(_cases("continuous_batching", ("llama", "qwen3", "mixtral"), dtypes=("float32",)))
def test_continuous_batching(accelerator, device, case, check):
    """Requests that share the pages of a cache get the answers that each would get alone."""
    paged.check_continuous_batching(check, _family(case), RunDevice(device, accelerator))

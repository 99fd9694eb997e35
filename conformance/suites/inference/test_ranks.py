"""Tensor-parallel inference cases: two ranks share heads, networks and words, and both get all logits."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, OP_BUILDERS
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .decoding import Decoder, workspace
from .language_model import language_models, own_part, some_tokens

BATCH, TOKENS, PROMPT = 2, 7, 4


def summed(part):
    """Sum the tensor over all ranks in place, and return it."""
    dist.all_reduce(part)
    return part


def all_words(logits, words, world_size):
    """Gather the logits of all ranks' words, (batch, tokens, words); ``tensor_split`` divides words over ranks."""
    # all_gather needs equal shapes, so ranks with fewer words are padded.
    most = -(-words // world_size)
    own = logits.new_zeros(*logits.shape[:-1], most)
    own[..., : logits.shape[-1]] = logits
    every = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(every, own)
    sizes = [len(part) for part in torch.arange(words).tensor_split(world_size)]
    return torch.cat([part[..., :size] for part, size in zip(every, sizes, strict=True)], dim=-1)


@case(
    "inference.tensor_parallel",
    axes={"dtype": ("float32", "bfloat16")},
    requires=[OP_BUILDERS, DTYPE, COMM, COMM_DTYPE],
    world_size=2,
)
def test_tensor_parallel(accelerator, device, dtype, check, rank, world_size, group):
    """Each rank gets the whole model's logits, all at once and token by token with a cache of its own heads."""
    exact, model = language_models(dtype)
    tokens = some_tokens(BATCH, TOKENS)
    wanted = exact(tokens).detach()
    part = own_part(model, rank, world_size).to(device)

    with workspace(accelerator, getattr(torch, dtype), BATCH, TOKENS, world_size) as injector:
        decoder = Decoder(part, injector, summed)
        found = {"all at once": decoder(tokens.to(device)), "token by token": decoder.singly(tokens.to(device), PROMPT)}

    for what, logits in found.items():
        every = all_words(logits, wanted.shape[-1], world_size)
        check.same_on_all_ranks(what, every)
        near(check, what, every, wanted, Near.FORWARD)

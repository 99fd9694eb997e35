"""A GPT-style language model on the English text of CPython's language reference."""

from __future__ import annotations

import time

import torch

from conformance.accelerators.capabilities import DETERMINISTIC
from conformance.case import cases

from . import tasks, training
from .bounds import bounds_of, learned
from .comparing import check_choices, relative_error, within
from .data import held_out_text, unigram_entropy
from .generation import NEW_TOKENS, PROMPTS, choosing, full_logits, generate, learned_model
from .loop import HOST, Place
from .measuring import Memory
from .planned import planned


@cases(planned("gpt.train", "training"))
def test_train(accelerator, device, declaration, case, check):
    """The model learns, along the host's way: gradients, losses, gradient norms and weights."""
    place = Place(device, accelerator)
    held_out = held_out_text(16, tasks.GPT_SHAPE.context, seed=2)
    entropy = unigram_entropy()

    trainer, run = training.check_against_host(check, "gpt", place, case.dtype)
    loss = trainer.held_out_loss(held_out)

    bound = entropy - learned("gpt", "below_unigram_entropy")
    check.that(
        loss < bound, f"the model has not learned: held-out loss {loss:.3f}, must be below {bound:.3f} nats per byte"
    )
    del trainer
    training.check_memory_returns(check, "gpt", place, case.dtype, Memory(accelerator, declaration))
    training.report_training(check, "gpt", run, "tokens")
    check.metric("held_out_loss", loss)
    check.metric("unigram_entropy", entropy)


@cases(planned("gpt.rerun", "training", DETERMINISTIC))
def test_rerun(accelerator, device, case, check, monkeypatch):
    """The same training twice has the same bits."""
    training.check_rerun(check, "gpt", Place(device, accelerator), case.dtype, monkeypatch)


@cases(planned("gpt.restart", "training"))
def test_restart(accelerator, device, declaration, case, check, tmp_path, monkeypatch):
    """Training goes on from a checkpoint as if it had never stopped."""
    place = Place(device, accelerator)
    training.check_restart(check, "gpt", place, case.dtype, declaration, tmp_path, monkeypatch)


@cases(planned("gpt.generate", "inference"))
def test_generate(accelerator, device, case, check):
    """Greedy generation chooses the host's tokens, and decoding with a cache equals the full forward pass."""
    place, dtype, bounds = Place(device, accelerator), getattr(torch, case.dtype), bounds_of(case.dtype)
    model, host_model = learned_model(place, dtype), learned_model(HOST, dtype)
    oracle = learned_model(HOST, dtype).double()

    started = time.perf_counter()
    generated = generate(model, place)
    seconds = time.perf_counter() - started
    host_generated = generate(host_model, HOST)

    exact = full_logits(oracle, HOST, generated.tokens)
    forward, host_forward = (
        full_logits(net, where, generated.tokens) for net, where in ((model, place), (host_model, HOST))
    )
    host_error = relative_error(host_forward, exact)
    error = relative_error(forward, exact)
    within(check, "the logits of a forward pass", error, bounds.logits, host_error, bounds)
    decoded = relative_error(generated.logits, choosing(exact))
    within(check, "the logits of decoding with a cache", decoded, bounds.logits, host_error, bounds)
    _check_causality(check, model, place, generated.tokens, forward, bounds)
    ties = _check_tokens(check, generated, host_generated, choosing(exact), bounds)
    check.metric("logit_error", error)
    check.metric("near_ties", ties)
    check.metric("tokens_per_s", PROMPTS * NEW_TOKENS / seconds)


def _check_causality(check, model, place, tokens, forward, bounds):
    """Later tokens do not change earlier logits."""
    half = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, half:] = (changed[:, half:] + 1) % tasks.GPT_SHAPE.vocabulary

    moved = relative_error(full_logits(model, place, changed)[:, :half], forward[:, :half])

    check.that(
        moved <= bounds.logits, f"later tokens change earlier logits by {moved:.3g}, allowed {bounds.logits:.3g}"
    )


def _check_tokens(check, generated, host_generated, exact, bounds):
    """Every token is the oracle's, or a near-tie; and the host's up to the first near-tie. Returns the near-ties."""
    ties = check_choices(check, generated.new, exact[:, :, :], bounds.near_tie)
    for row, (ours, hosts) in enumerate(zip(generated.new, host_generated.new, strict=True)):
        differ = (ours != hosts).nonzero()
        if not len(differ):
            continue
        first = int(differ[0])
        # Up to here both had the same tokens, so the oracle's logits speak for both choices.
        gap = float((exact[row, first, ours[first]] - exact[row, first, hosts[first]]).abs() / exact.abs().max())
        check.that(
            gap <= bounds.near_tie, f"token {first} of prompt {row} is not the host's: {gap:.3g} apart, not a near-tie"
        )
    return ties

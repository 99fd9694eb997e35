"""Cases for a GPT-style language model on the English text of CPython's language reference."""

from __future__ import annotations

import time

import torch

from conformance.accelerators.capabilities import DETERMINISTIC
from conformance.plan.case import cases

from . import tasks, training
from .comparing import bounds_of, check_choices, learned, relative_error, within
from .data import held_out_text, unigram_entropy
from .generation import NEW_TOKENS, PROMPTS, choosing, full_logits, generate, learned_model
from .loop import HOST, RunDevice
from .measuring import MemoryCounters
from .planned import planned


@cases(planned("gpt.train", "training"))
def test_train(accelerator, device, declaration, case, check):
    """The language model learns, with the host's gradients, losses, gradient norms and weights."""
    run_device = RunDevice(device, accelerator)
    held_out = held_out_text(16, tasks.GPT_SHAPE.context, seed=2)
    entropy = unigram_entropy()

    trainer, run = training.check_against_host(check, "gpt", run_device, case.dtype)
    loss = trainer.held_out_loss(held_out)

    bound = entropy - learned("gpt", "below_unigram_entropy")
    check.that(
        loss < bound, f"the model has not learned: held-out loss {loss:.3f}, must be below {bound:.3f} nats per byte"
    )
    del trainer  # it holds device memory that the next check would count
    training.check_memory_returns(check, "gpt", run_device, case.dtype, MemoryCounters(accelerator, declaration))
    training.report_training(check, "gpt", run, "tokens")
    check.metric("held_out_loss", loss)
    check.metric("unigram_entropy", entropy)


@cases(planned("gpt.rerun", "training", DETERMINISTIC))
def test_rerun(accelerator, device, case, check):
    """Two runs of the same training of the language model give the same bits."""
    training.check_rerun(check, "gpt", RunDevice(device, accelerator), case.dtype)


@cases(planned("gpt.restart", "training"))
def test_restart(accelerator, device, declaration, case, check, tmp_path):
    """Training of the language model continues from a checkpoint as if it had not been interrupted."""
    run_device = RunDevice(device, accelerator)
    training.check_restart(check, "gpt", run_device, case.dtype, declaration, tmp_path)


@cases(planned("gpt.generate", "inference"))
def test_generate(accelerator, device, case, check):
    """Greedy generation chooses the host's tokens, and decoding with a cache equals the full forward pass."""
    run_device, dtype, bounds = RunDevice(device, accelerator), getattr(torch, case.dtype), bounds_of(case.dtype)
    model, host_model = learned_model(run_device, dtype), learned_model(HOST, dtype)
    oracle = learned_model(HOST, dtype).double()

    started = time.perf_counter()
    generated = generate(model, run_device)
    seconds = time.perf_counter() - started
    host_generated = generate(host_model, HOST)

    exact = full_logits(oracle, HOST, generated.tokens)
    forward, host_forward = (
        full_logits(network, runs_on, generated.tokens)
        for network, runs_on in ((model, run_device), (host_model, HOST))
    )
    host_error = relative_error(host_forward, exact)
    error = relative_error(forward, exact)
    within(check, "the logits of a forward pass", error, bounds.logits, host_error, bounds)
    decoded = relative_error(generated.logits, choosing(exact))
    within(check, "the logits of decoding with a cache", decoded, bounds.logits, host_error, bounds)
    _check_causality(check, model, run_device, generated.tokens, forward, bounds)
    ties = _check_tokens(check, generated, host_generated, choosing(exact), bounds)
    check.metric("logit_error", error)
    check.metric("near_ties", ties)
    check.metric("tokens_per_s", PROMPTS * NEW_TOKENS / seconds)


def _check_causality(check, model, run_device, tokens, forward, bounds):
    """Check that later tokens do not change earlier logits."""
    half = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, half:] = (changed[:, half:] + 1) % tasks.GPT_SHAPE.vocabulary

    moved = relative_error(full_logits(model, run_device, changed)[:, :half], forward[:, :half])

    check.that(
        moved <= bounds.logits, f"later tokens change earlier logits by {moved:.3g}, allowed {bounds.logits:.3g}"
    )


def _check_tokens(check, generated, host_generated, exact, bounds):
    """Check that tokens are the oracle's or near-ties, and the host's up to the first near-tie; return their number."""
    ties = check_choices(check, generated.new, exact, bounds.near_tie)
    for row, (tokens, host_tokens) in enumerate(zip(generated.new, host_generated.new, strict=True)):
        differ = (tokens != host_tokens).nonzero()
        if not len(differ):
            continue
        first = int(differ[0])
        # Before this position both have the same tokens, so the oracle's logits hold for both choices.
        gap = float(
            (exact[row, first, tokens[first]] - exact[row, first, host_tokens[first]]).abs() / exact.abs().max()
        )
        check.that(
            gap <= bounds.near_tie,
            f"token {first} of prompt {row} is not the host's: logits differ by {gap:.3g}, limit {bounds.near_tie:.3g}",
        )
    return ties

"""Generation cases: cached decoding, padded batches, reused memory, rollback and refused calls."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.base.errors import UsageError
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .decoding import Decoder, StaticDecoder, workspace
from .language_model import VOCABULARY, language_models, some_tokens
from .padding import Padded

FLOATS = ("float32", "float16", "bfloat16")
NEEDS = (OP_BUILDERS, DTYPE)
BATCH, TOKENS = 2, 9
#: Exceptions that count as a refusal, by kernels and by PyTorch.
REFUSALS = (UsageError, RuntimeError, ValueError, IndexError)


def judge(check, what, found, wanted):
    """Check the logits of each token on its own, with errors relative to the largest logit of all."""
    largest = float(wanted.abs().max())
    for place in range(wanted.shape[1]):
        near(check, f"{what}, token {place}", found[:, place], wanted[:, place], Near.FORWARD, largest=largest)


@case("inference.decode", axes={"dtype": FLOATS}, requires=NEEDS)
def test_decode(accelerator, device, dtype, check):
    """Cached decoding gives the logits of the whole sequence after a prompt of one and of five tokens."""
    exact, model = language_models(dtype)
    tokens = some_tokens(BATCH, TOKENS)
    wanted = exact(tokens).detach()
    model, given = model.to(device), tokens.to(device)

    with workspace(accelerator, getattr(torch, dtype), BATCH, TOKENS) as injector:
        decoder = Decoder(model, injector)
        found = {
            "without a cache": model(given).detach(),
            "all at once by kernels": decoder(given),
            "after a prompt of 5": decoder.singly(given, 5),
            "after a prompt of 1": decoder.singly(given, 1),
        }

    for what, logits in found.items():
        judge(check, what, logits, wanted)
    for row in injector.told():
        check.metric(f"{row.kernel}.{row.dtype}", f"{row.implementation.value}: {row.reason}")


@case("inference.ragged", axes={"dtype": ("float32", "bfloat16"), "padded": ("left", "right")}, requires=NEEDS)
def test_ragged(accelerator, device, dtype, padded, check):
    """Each sequence of a padded batch of unequal prompts gets the logits that it gets alone."""
    further, lengths = 3, (3, 6, 1, 0)
    exact, model = language_models(dtype)
    batch = Padded([some_tokens(length + further, seed=length) for length in lengths], lengths, padded == "left")
    kind = getattr(torch, dtype)

    with workspace(accelerator, kind, len(lengths), batch.room + further) as injector:
        decoder = Decoder(model.to(device), injector)
        prompts, mask, places = batch.prompts(), batch.mask(kind), batch.prompt_places()
        found = [decoder(prompts.to(device), mask.to(device), places.to(device), begins=True)]
        for step in range(further):
            tokens, places = batch.next(step)
            found.append(decoder(tokens.to(device), batch.mask(kind, step + 1).to(device), places.to(device)))

    logits = torch.cat(found, dim=1)
    for row, (sequence, length) in enumerate(zip(batch.sequences, lengths, strict=True)):
        own = [*range(batch.first(row), batch.first(row) + length), *range(batch.room, batch.room + further)]
        judge(
            check, f"the sequence with a prompt of {length}", logits[row : row + 1, own], exact(sequence[None]).detach()
        )


@case("inference.reuse", axes={"again": ("prompt", "reset", "retaken")}, requires=[OP_BUILDERS, DTYPE.on("float32")])
def test_reuse(accelerator, device, again, check):
    """Later sequences of other shapes in the same workspace do not depend on its earlier contents."""
    exact, model = language_models("float32")
    shapes = ((BATCH, TOKENS, 5), (1, 4, 3), (BATCH, TOKENS, 2))

    with workspace(accelerator, torch.float32, BATCH, TOKENS) as injector:
        decoder = Decoder(model.to(device), injector)
        for number, (batch, count, prompt) in enumerate(shapes):
            tokens = some_tokens(batch, count, seed=number)
            found = decoder.singly(tokens.to(device), prompt) if again != "reset" else one_by_one(decoder, tokens)
            judge(check, f"sequence {number}", found, exact(tokens).detach())
            begin_again(injector, again)


def one_by_one(decoder, tokens):
    """Decode token by token with begins=False, also for the first token, as the cache was reset; return all logits."""
    columns = tokens.to(decoder.tokens.weight.device).split(1, dim=1)
    return torch.cat([decoder(column, begins=False) for column in columns], dim=1)


def begin_again(injector, again):
    """Reset or retake the workspace; for "prompt" do nothing, as a prompt begins a sequence by itself."""
    if again == "reset":
        injector.companion("softmax_context", "reset_cache")()
    if again == "retaken":
        injector.companion("softmax_context", "release_workspace")()
        injector.companion("softmax_context", "retake_workspace")()


@case("inference.rollback", axes={"dtype": ("float32", "bfloat16")}, requires=[DTYPE])
def test_rollback(device, dtype, check):
    """Tokens that were rolled back, as in speculative decoding, do not affect the tokens that replace them."""
    exact, model = language_models(dtype)
    tokens, guessed = some_tokens(BATCH, TOKENS), some_tokens(BATCH, 4, seed=3)
    decoder = StaticDecoder(model.to(device), BATCH, TOKENS)

    begun = decoder.run(tokens[:, :4])
    guesses = decoder.run(guessed)
    decoder.back_to(4)
    rest = decoder.run(tokens[:, 4:])

    judge(check, "the guessed tokens", guesses, exact(torch.cat([tokens[:, :4], guessed], dim=1))[:, 4:].detach())
    judge(check, "the sequence after the rollback", torch.cat([begun, rest], dim=1), exact(tokens).detach())


@case(
    "inference.refuses",
    axes={"what": ("tokens", "batch", "dtype", "next_token", "released")},
    requires=[OP_BUILDERS, DTYPE.on("float32"), DTYPE.on("bfloat16")],
)
def test_refuses(accelerator, device, what, check):
    """A call that does not fit the workspace raises an error and leaves the running sequence intact."""
    exact, model = language_models("float32")
    tokens = some_tokens(BATCH, TOKENS)
    wanted, given = exact(tokens).detach(), tokens.to(device)
    seen = TOKENS if what == "next_token" else 4

    with workspace(accelerator, torch.float32, BATCH, TOKENS) as injector:
        decoder = Decoder(model.to(device), injector)
        begun = decoder.singly(given[:, :seen], 4)
        if what == "released":
            injector.companion("softmax_context", "release_workspace")()
        error = refusal(unfitting(what, decoder, device, injector))
        if what == "released":
            injector.companion("softmax_context", "retake_workspace")()
            begun = decoder(given[:, :seen], begins=True)
        rest = [decoder(given[:, at : at + 1]) for at in range(seen, TOKENS)]

    check.that(
        str(error or "").strip(), f"a call with unfitting '{what}' gave {error!r}; an error with a text is needed"
    )
    judge(check, "the sequence around the refused call", torch.cat([begun, *rest], dim=1), wanted)


def unfitting(what, decoder, device, injector):
    """Return a call that the workspace has no room for, or that it cannot take in its state."""
    if what == "dtype":
        other = Decoder(language_models("bfloat16")[1].to(device), injector)
        return lambda: other(some_tokens(BATCH, 2).to(device), begins=True)
    shape = {"tokens": (BATCH, TOKENS + 1), "batch": (BATCH + 1, 2)}.get(what, (BATCH, 1))
    return lambda: decoder(some_tokens(*shape).to(device), begins=shape[1] > 1)


def refusal(call):
    """Return the error that the call raises, or None."""
    try:
        call()
    except REFUSALS as error:
        return error
    return None


@case("inference.empty_prompt", requires=[OP_BUILDERS, DTYPE.on("float32")])
def test_empty_prompt(accelerator, device, check):
    """An empty prompt gives empty logits or an error with a text, and does not affect the next sequence."""
    exact, model = language_models("float32")
    tokens = some_tokens(BATCH, TOKENS)
    answers = []

    with workspace(accelerator, torch.float32, BATCH, TOKENS) as injector:
        decoder = Decoder(model.to(device), injector)
        empty = torch.zeros(BATCH, 0, dtype=torch.int64, device=device)
        error = refusal(lambda: answers.append(decoder(empty, begins=True)))
        found = decoder.singly(tokens.to(device), 3)

    if error is None:
        check.equal(tuple(answers[0].shape), (BATCH, 0, VOCABULARY), "the shape of the logits of an empty prompt")
    else:
        check.that(str(error).strip(), f"an empty prompt raises {type(error).__name__} without a text")
    judge(check, "the sequence after an empty prompt", found, exact(tokens).detach())

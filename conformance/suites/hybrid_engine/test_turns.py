"""Training and generating in turns with one set of weights: by kernels, by graphs, and with fused small matrices."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, GRAPH_CAPTURE, OP_BUILDERS, RNG_GENERATOR, RNG_STATE
from conformance.case import case
from conformance.numerics.nearness import Near, bound_of, near, relative_error
from conformance.suites.inference.decoding import Decoder, StaticDecoder, workspace
from conformance.suites.inference.language_model import language_models, seeded, some_tokens

from .turns import (
    BATCH,
    TOKENS,
    as_one_matrix,
    bits,
    captured,
    everything,
    sampled,
    train,
    tuned_layers,
    wanted,
    with_small_matrices,
)

KINDS = ("float32", "bfloat16")
#: A step as large as this is seen in 16 bits as well.
RATE = 0.5


def check_moved(check, old, new, dtype):
    """Logits before and after a step have to be further apart than their bounds, or nobody sees which ones came."""
    moved, bound = relative_error(new, old), bound_of(Near.FORWARD, dtype)
    check.that(moved > 2 * bound, f"a step of training moves logits by {moved:.3g}, and {bound:.3g} is allowed")


@case("hybrid_engine.step_is_seen", requires=[OP_BUILDERS, DTYPE], axes={"dtype": KINDS})
def test_step_is_seen(accelerator, device, dtype, check):
    """Kernels that were given the weights before training generate with what each step makes of them, at once."""
    kind, tokens = getattr(torch, dtype), some_tokens(BATCH, TOKENS)
    model = language_models(dtype)[1].to(device)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=RATE), None

    with workspace(accelerator, kind, BATCH, TOKENS) as injector:
        decoder = Decoder(model, injector)
        for turn in range(3):
            exact = wanted(model, tokens)
            near(check, f"logits after {turn} steps", decoder.singly(tokens.to(device), 2), exact, Near.FORWARD)
            near(check, f"the trained model's after {turn} steps", model(tokens.to(device)), exact, Near.FORWARD)
            if before is not None:
                check_moved(check, before, exact, kind)
            before = exact
            train(model, optimizer, seed=turn)


@case(
    "hybrid_engine.generating_changes_nothing",
    requires=[OP_BUILDERS, DTYPE.on("float32"), RNG_STATE, RNG_GENERATOR],
)
def test_generating_changes_nothing(accelerator, device, check):
    """Sampling with a generator of its own leaves all that training goes on with, bit by bit, and repeats."""
    model, drawn = language_models("float32")[1].to(device).train(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for turn in range(2):
        train(model, optimizer, seed=turn)
    generator, prompt = torch.Generator(device=device), some_tokens(BATCH, 2).to(device)
    before = everything(model, optimizer, accelerator)

    for seed in (1, 1, 2):
        generator.manual_seed(seed)
        with workspace(accelerator, torch.float32, BATCH, 16) as injector:
            drawn.append(sampled(Decoder(model, injector), prompt, 12, generator).cpu())

    after = everything(model, optimizer, accelerator)
    for name, value in before.items():
        check.equal(after[name], value, f"{name}, after generating")
    check.equal(drawn[1], drawn[0], "tokens of the same seed")
    check.that(not torch.equal(drawn[2], drawn[0]), "tokens of another seed are the same")


@case("hybrid_engine.graph", requires=[GRAPH_CAPTURE, DTYPE], axes={"dtype": KINDS})
def test_graph(accelerator, device, dtype, check):
    """Replayed token by token, a captured step gives what the eager one gives; after training, with the new weights."""
    kind, tokens = getattr(torch, dtype), some_tokens(BATCH, TOKENS)
    model = language_models(dtype)[1].to(device)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=RATE), None
    decoder = StaticDecoder(model, BATCH, TOKENS)
    graph = captured(accelerator, decoder.step)

    for turn in range(2):
        exact = wanted(model, tokens)
        for what, step in (("eagerly", None), ("replayed", lambda: accelerator.replay_graph(graph))):
            decoder.back_to(0)
            decoder.logits.zero_()
            near(check, f"{what}, after {turn} steps", decoder.run(tokens, step), exact, Near.FORWARD)
        if before is not None:
            check_moved(check, before, exact, kind)
        before = exact
        train(model, optimizer, seed=turn)


@case("hybrid_engine.lora", requires=[DTYPE], axes={"dtype": KINDS})
def test_lora(device, dtype, check):
    """Fused for generating, small matrices give the same logits; taken apart, every weight has the bits it had."""
    tokens = some_tokens(BATCH, TOKENS)
    model = seeded(lambda: with_small_matrices(language_models(dtype)[1])).to(device)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    decoder = StaticDecoder(model, BATCH, TOKENS)

    for turn in range(2):
        exact, before, found = wanted(model, tokens, as_one_matrix(model)), bits(model), {}
        for what, change in (("apart", None), ("fused", "merge"), ("apart again", "unmerge")):
            for layer in tuned_layers(model) if change else ():
                getattr(layer, change)()
            decoder.back_to(0)
            found[what] = decoder.run(tokens)
        after = bits(model)
        train(model, optimizer, seed=turn)

        for what, logits in found.items():
            near(check, f"{what}, after {turn} steps", logits, exact, Near.FORWARD)
        for name, value in before.items():
            check.equal(after[name], value, f"{name}, after it was fused and taken apart")
        changed = {name.rpartition(".")[2] for name, one in bits(model).items() if not torch.equal(one, after[name])}
        check.equal(changed, {"down", "up"}, "what the next step of training has changed")

"""Cases that train and generate in turns with one set of weights: with kernels, graphs and merged LoRA matrices."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, GRAPH_CAPTURE, OP_BUILDERS, RNG_GENERATOR, RNG_STATE
from conformance.numerics.nearness import Near, bound_of, near, relative_error
from conformance.plan.case import case
from conformance.suites.inference.decoding import Decoder, StaticDecoder, workspace
from conformance.suites.inference.language_model import language_models, seeded, some_tokens

from .turns import (
    BATCH,
    TOKENS,
    as_one_matrix,
    bits,
    captured,
    exact_logits,
    sampled,
    train,
    training_state,
    tuned_layers,
    with_small_matrices,
)

KINDS = ("float32", "bfloat16")
#: Learning rate: large enough that one step is visible in 16 bits too.
RATE = 0.5


def check_moved(check, old, new, dtype):
    """Check that a step moves the logits by more than both tolerances; else old logits would pass for new ones."""
    moved, bound = relative_error(new, old), bound_of(Near.FORWARD, dtype)
    message = f"a training step moves the logits by {moved:.3g}; more than 2 x the tolerance {bound:.3g} is needed"
    check.that(moved > 2 * bound, message)


@case("hybrid_engine.step_is_seen", requires=[OP_BUILDERS, DTYPE], axes={"dtype": KINDS})
def test_step_is_seen(accelerator, device, dtype, check):
    """Kernels that got the weights before training generate with the updated weights after each step."""
    kind, tokens = getattr(torch, dtype), some_tokens(BATCH, TOKENS)
    model = language_models(dtype)[1].to(device)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=RATE), None

    with workspace(accelerator, kind, BATCH, TOKENS) as injector:
        decoder = Decoder(model, injector)
        for turn in range(3):
            exact = exact_logits(model, tokens)
            near(check, f"logits after {turn} steps", decoder.singly(tokens.to(device), 2), exact, Near.FORWARD)
            near(check, f"the trained model's logits after {turn} steps", model(tokens.to(device)), exact, Near.FORWARD)
            if before is not None:
                check_moved(check, before, exact, kind)
            before = exact
            train(model, optimizer, seed=turn)


@case(
    "hybrid_engine.generating_changes_nothing",
    requires=[OP_BUILDERS, DTYPE.on("float32"), RNG_STATE, RNG_GENERATOR],
)
def test_generating_changes_nothing(accelerator, device, check):
    """Sampling with a separate generator repeats, and changes no bit of the training state."""
    model, drawn = language_models("float32")[1].to(device).train(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for turn in range(2):
        train(model, optimizer, seed=turn)
    generator, prompt = torch.Generator(device=device), some_tokens(BATCH, 2).to(device)
    before = training_state(model, optimizer, accelerator)

    for seed in (1, 1, 2):
        generator.manual_seed(seed)
        with workspace(accelerator, torch.float32, BATCH, 16) as injector:
            drawn.append(sampled(Decoder(model, injector), prompt, 12, generator).cpu())

    after = training_state(model, optimizer, accelerator)
    for name, value in before.items():
        check.equal(after[name], value, f"{name} after generating")
    check.equal(drawn[1], drawn[0], "tokens drawn with the same seed")
    check.that(not torch.equal(drawn[2], drawn[0]), "seeds 1 and 2 give the same tokens")


@case("hybrid_engine.graph", requires=[GRAPH_CAPTURE, DTYPE], axes={"dtype": KINDS})
def test_graph(accelerator, device, dtype, check):
    """A captured step replayed for each token gives the logits of the current weights, also after training."""
    kind, tokens = getattr(torch, dtype), some_tokens(BATCH, TOKENS)
    model = language_models(dtype)[1].to(device)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=RATE), None
    decoder = StaticDecoder(model, BATCH, TOKENS)
    graph = captured(accelerator, decoder.step)

    for turn in range(2):
        exact = exact_logits(model, tokens)
        for mode, step in (("eager", None), ("replayed", lambda: accelerator.replay_graph(graph))):
            decoder.back_to(0)
            # A replay that does nothing must not pass with the logits of the eager run.
            decoder.logits.zero_()
            near(check, f"{mode} logits after {turn} steps", decoder.run(tokens, step), exact, Near.FORWARD)
        if before is not None:
            check_moved(check, before, exact, kind)
        before = exact
        train(model, optimizer, seed=turn)


@case("hybrid_engine.lora", requires=[DTYPE], axes={"dtype": KINDS})
def test_lora(device, dtype, check):
    """LoRA matrices merged for generation give the same logits, and unmerging restores every weight bit for bit."""
    tokens = some_tokens(BATCH, TOKENS)
    model = seeded(lambda: with_small_matrices(language_models(dtype)[1])).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    decoder = StaticDecoder(model, BATCH, TOKENS)

    for turn in range(2):
        exact, before, found = exact_logits(model, tokens, as_one_matrix(model)), bits(model), {}
        for stage, change in (("before merging", None), ("merged", "merge"), ("unmerged", "unmerge")):
            for layer in tuned_layers(model) if change else ():
                getattr(layer, change)()
            decoder.back_to(0)
            found[stage] = decoder.run(tokens)
        after = bits(model)
        train(model, optimizer, seed=turn)

        for stage, logits in found.items():
            near(check, f"logits {stage}, after {turn} steps", logits, exact, Near.FORWARD)
        for name, value in before.items():
            check.equal(after[name], value, f"{name} after merge() and unmerge()")
        trained_names = {
            name.rpartition(".")[2] for name, value in bits(model).items() if not torch.equal(value, after[name])
        }
        check.equal(trained_names, {"down", "up"}, "names of the weights that the next training step changed")

"""Tiling cases: tiled networks and losses agree with untiled ones, need less peak memory, and work on ranks."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, MEMORY_PEAK
from conformance.numerics.budgets import load_table
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.accelerator.test_memory import peak_of

from .tiling import IGNORED, Network, loss_sum, tiled, tiled_loss_sum

#: Recomputation imports both.
RANK_IMPORTS = ("torch._dynamo", "torch.utils.checkpoint")
TOKENS, WIDTH, MIDDLE, WORDS = 13, 12, 31, 37
#: Tokens of a tile: one, a number that does not divide TOKENS, and more than TOKENS.
TILES = ("1", "5", "64")
KINDS = ("float32", "bfloat16")


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network(dtype, width=WIDTH, middle=MIDDLE):
    """Return a network with weights in ``dtype``, equal on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Network(width, middle).to(dtype)


def problem(dtype, tokens=TOKENS):
    """Return hidden states, a head, and targets, of which the last five and the third are ignored by the loss."""
    targets = torch.randint(WORDS, (tokens,), generator=torch.Generator().manual_seed(4))
    targets[-5:], targets[2] = IGNORED, IGNORED
    return draw(tokens, WIDTH, seed=2).to(dtype), draw(WORDS, WIDTH, seed=3).to(dtype), targets


def check_gradients(check, what, found, wanted):
    for name, gradient in wanted.items():
        near(check, f"{what}: the gradient of {name}", found[name], gradient, Near.GRADIENTS)


def gradients(model, x):
    return {"the input": x.grad, **{name: parameter.grad for name, parameter in model.named_parameters()}}


@case("ulysses_alst.mlp", requires=[DTYPE], axes={"dtype": KINDS, "tile": TILES})
def test_mlp(device, dtype, tile, check):
    """Output and gradients of a network, tiled and untiled, agree with float64."""
    kind = getattr(torch, dtype)
    model, source = network(kind), draw(TOKENS, WIDTH, seed=2).to(kind)
    upstream = draw(TOKENS, WIDTH, seed=5).to(kind)
    exact, x = copy.deepcopy(model).double(), source.double().requires_grad_()
    expected = exact(x)
    expected.backward(upstream.double())

    for mode in ("untiled", "tiled"):
        own, given = copy.deepcopy(model).to(device), source.clone().to(device).requires_grad_()
        output = own(given) if mode == "untiled" else tiled(own, given, int(tile))
        output.backward(upstream.to(device))

        near(check, f"{mode}: the output", output, expected, Near.FORWARD)
        check_gradients(check, mode, gradients(own, given), gradients(exact, x))


@case("ulysses_alst.loss", requires=[DTYPE], axes={"dtype": KINDS, "tile": TILES})
def test_loss(device, dtype, tile, check):
    """A tiled loss is the mean over unmasked tokens, and a tile without such tokens adds no NaN."""
    hidden, head, targets = problem(getattr(torch, dtype))
    exact = [tensor.double().requires_grad_() for tensor in (hidden, head)]
    expected = torch.nn.functional.cross_entropy(exact[0] @ exact[1].t(), targets, ignore_index=IGNORED)
    expected.backward()
    wanted = {"the hidden states": exact[0].grad, "the head": exact[1].grad}

    for mode in ("untiled", "tiled"):
        own = [tensor.clone().to(device).requires_grad_() for tensor in (hidden, head)]
        judged = targets.to(device)
        total = loss_sum(*own, judged) if mode == "untiled" else tiled_loss_sum(*own, judged, int(tile))
        loss = total / (judged != IGNORED).sum()
        loss.backward()

        near(check, f"{mode}: the loss", loss, expected, Near.FORWARD, dtype=own[0].dtype)
        check_gradients(check, mode, {"the hidden states": own[0].grad, "the head": own[1].grad}, wanted)


def network_pass(device, tile):
    """Return a forward and backward pass through a wide network, and the bytes of one of its inner results.

    ``tile`` is the number of tokens in a tile; None means all of them.
    """
    tokens, middle = 2048, 32 * WIDTH * 4
    model = network(torch.float32, middle=middle).to(device)
    x = draw(tokens, WIDTH, seed=2).to(device).requires_grad_()
    return lambda: tiled(model, x, tile or tokens).sum().backward(), 4 * tokens * middle


def loss_pass(device, tile):
    """Return a forward and backward pass of a loss of many tokens over many words, and the bytes of all logits."""
    tokens, words = 2048, 1031
    hidden, head = (draw(size, WIDTH, seed=size).to(device).requires_grad_() for size in (tokens, words))
    targets = torch.arange(tokens, device=device) % words
    return lambda: tiled_loss_sum(hidden, head, targets, tile or tokens).backward(), 4 * tokens * words


PASSES = {"mlp": network_pass, "loss": loss_pass}


@case("ulysses_alst.peak", requires=[MEMORY_PEAK, DTYPE.on("float32")], axes={"of": tuple(PASSES)})
def test_peak(accelerator, device, of, check):
    """A pass in eight tiles has at most a quarter of the peak memory of an untiled pass."""
    whole, inner = PASSES[of](device, None)
    eighth, _ = PASSES[of](device, 2048 // 8)
    limit = load_table(__file__, "limits.toml")["share_of_the_untiled_peak"]

    untiled, in_tiles = peak_of(accelerator, whole), peak_of(accelerator, eighth)

    # An untiled pass holds two inner results at once. Lower peaks mean that the statistics are wrong.
    message = f"one tile raised the peak by {untiled} bytes, less than two inner results of {inner} bytes"
    check.that(untiled >= 2 * inner, message)
    message = f"eight tiles raised the peak by {in_tiles} bytes, more than {limit} of the {untiled} bytes of one tile"
    check.that(in_tiles <= limit * untiled, message)
    message = (
        f"eight tiles raised the peak by {in_tiles} bytes, less than one inner result of a tile, {inner // 8} bytes"
    )
    check.that(in_tiles >= inner // 8, message)
    check.metric("share_of_the_untiled_peak", round(in_tiles / untiled, 4))


@case("ulysses_alst.ranks", requires=[COMM, COMM_DTYPE.on("float32")], world_size=2)
def test_ranks(check, device, rank, world_size, group):
    """Tokens sharded over ranks and then tiled give the loss and gradients of one process."""
    hidden, head, targets = problem(torch.float32)
    model = network(torch.float32)
    exact, weights = copy.deepcopy(model).double(), head.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact(hidden.double()) @ weights.t(), targets, ignore_index=IGNORED)
    expected.backward()
    # In tiles of three tokens these are two tiles on rank 0 and three on rank 1.
    rows = slice(0, 6) if rank == 0 else slice(6, None)
    model, own_head, mine = model.to(device), head.to(device).requires_grad_(), targets[rows].to(device)

    total = tiled_loss_sum(tiled(model, hidden[rows].to(device), 3), own_head, mine, 3)
    count = (mine != IGNORED).sum().float()
    dist.all_reduce(count)
    (total / count).backward()
    found = {name: parameter.grad for name, parameter in [*model.named_parameters(), ("the head", own_head)]}
    loss = (total / count).detach()
    for part in (loss, *found.values()):
        dist.all_reduce(part)

    near(check, "the loss", loss, expected.detach(), Near.FORWARD)
    wanted = {name: parameter.grad for name, parameter in [*exact.named_parameters(), ("the head", weights)]}
    check_gradients(check, "on ranks", found, wanted)
    check.same_on_all_ranks("the loss", loss)

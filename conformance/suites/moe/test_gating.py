"""Gating cases: routing, dispatch and combination on one device."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .routing import combine, dispatch, route, route_by_hand

NEEDS = (DTYPE.on("float32"), DTYPE.on("int64"), DTYPE.on("bool"))
TOKENS, EXPERTS, WIDTH = 23, 5, 7
CHOICES = ("1", "2", "3", "5")
#: Capacities that drop nearly all tokens, some tokens, and no token.
CAPACITIES = ("1", "4", "23")


def logits(kind):
    """Return random scores (TOKENS, EXPERTS), or for "ties" rounded ones, of which many are equal."""
    scores = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(2))
    return scores if kind == "random" else scores.round()


@case("moe.gating", requires=NEEDS, axes={"choices": CHOICES, "capacity": CAPACITIES, "scores": ("random", "ties")})
def test_gating(check, device, choices, capacity, scores):
    """Experts, queue places, weights and dropped tokens agree with a plain Python reference, also for ties."""
    given, choices, capacity = logits(scores), int(choices), int(capacity)

    routing = route(given.to(device), choices, capacity)

    by_hand = route_by_hand(given.double().tolist(), choices, capacity)
    for index, name in enumerate(("experts", "places", "weights", "kept")):
        expected = torch.tensor([[choice[index] for choice in row] for row in by_hand], dtype=torch.float64)
        found = getattr(routing, name).cpu()
        if name == "weights":
            near(check, name, found, expected, Near.FORWARD)
        else:
            check.equal(found.double(), expected, name)
    check.metric("dropped", int((~routing.kept).sum()))


@case("moe.identity", requires=NEEDS, axes={"choices": CHOICES, "capacity": CAPACITIES[1:]})
def test_identity(check, device, choices, capacity):
    """Identity experts return every token and its gradient, scaled by the sum of its kept weights."""
    exact = torch.randn(TOKENS, WIDTH)
    x = exact.to(device).requires_grad_()
    routing = route(logits("random").to(device), int(choices), int(capacity))

    found = combine(dispatch(x, routing, EXPERTS, int(capacity)), routing, TOKENS)
    found.sum().backward()

    share = routing.weights.sum(-1, keepdim=True).cpu().double()
    check.that(bool(share.any()), "the weights of all tokens are 0")
    near(check, "the tokens", found, exact.double() * share, Near.SUMS)
    near(check, "their gradients", x.grad, share.expand(TOKENS, WIDTH), Near.SUMS)


@case("moe.queues", requires=NEEDS)
def test_queues(check, device):
    """Every kept token is in exactly one place of each chosen queue, and free places hold zeros."""
    x = torch.arange(1.0, TOKENS + 1, device=device).view(-1, 1)
    routing = route(logits("ties").to(device), 2, 6)

    slots = dispatch(x, routing, EXPERTS, 6).cpu().view(EXPERTS, 6)

    by_hand = [[0.0] * 6 for _ in range(EXPERTS)]
    for token, row in enumerate(route_by_hand(logits("ties").double().tolist(), 2, 6)):
        for expert, place, _, kept in row:
            if kept:
                by_hand[expert][place] = token + 1.0
    check.equal(slots.tolist(), by_hand, "the tokens in the experts' queues")

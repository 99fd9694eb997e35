"""Router cases: losses with their gradients, seeded noise, and the choice of dropped tokens."""

from __future__ import annotations

import math

import torch

from conformance.accelerators.capabilities import DTYPE, RNG_GENERATOR
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .router import (
    balance_by_hand,
    balance_loss,
    gumbel,
    jitter,
    kept_by_hand,
    route_by_priority,
    size_by_hand,
    size_loss,
    softmax_by_hand,
)
from .routing import combine, dispatch, route
from .test_gating import CHOICES, EXPERTS, NEEDS, TOKENS, WIDTH, logits

#: Factors of the mean load. They drop most choices, some, and none but those of a crowded expert.
FACTORS = ("0.25", "1.0", "1.5")
#: Standard errors that a mean of random numbers may be off. Six are rare, also where counts are small and skewed.
STANDARD_ERRORS = 6
DRAWS = 4096


def by_loss(loss, scores, device, *arguments):
    """Return the loss of the scores on the device, and its gradient."""
    mine = scores.to(device, copy=True).requires_grad_()
    value = loss(mine, *arguments)
    value.backward()
    return value, mine.grad


@case("moe.balance_loss", requires=NEEDS, axes={"choices": CHOICES, "scores": ("random", "ties")})
def test_balance_loss(check, device, choices, scores):
    """The loss that balances the load of experts, and its gradient, agree with sums by hand."""
    given = logits(scores)
    chosen = route(given.to(device), int(choices), TOKENS).experts
    by_hand = [sorted(range(EXPERTS), key=lambda one, row=row: (-row[one], one))[: int(choices)] for row in given]

    loss, gradient = by_loss(balance_loss, given, device, chosen)

    expected, gradients = balance_by_hand(given.double().tolist(), by_hand)
    near(check, "the loss", loss, torch.tensor(expected), Near.SUMS)
    # With all experts chosen the shares are equal and the gradient is 0: the probabilities are its scale.
    largest = EXPERTS / TOKENS
    near(check, "its gradient", gradient, torch.tensor(gradients, dtype=torch.float64), Near.SUMS, largest=largest)


@case("moe.size_loss", requires=NEEDS, axes={"scale": ("1", "30", "3000")})
def test_size_loss(check, device, scale):
    """The loss that keeps scores small, and its gradient, are right and finite for scores of any size."""
    given = logits("random") * float(scale)

    loss, gradient = by_loss(size_loss, given, device)

    expected, gradients = size_by_hand(given.double().tolist())
    near(check, "the loss", loss, torch.tensor(expected), Near.SUMS)
    exact = torch.tensor(gradients, dtype=torch.float64)
    # A probability is the exponential of score minus logarithm: the rounding of the larger one is a relative error.
    logarithm = float(torch.logsumexp(given.double(), dim=-1).abs().max())
    near(check, "its gradient", gradient, exact, Near.SUMS, largest=float(exact.abs().max()) * (1 + logarithm / 4))


@case("moe.noise.jitter", requires=[*NEEDS, RNG_GENERATOR], axes={"spread": ("0.01", "0.5")})
def test_jitter(check, device, spread):
    """Random factors of scores repeat with their seed, keep their bounds and mean, and scale the gradient."""
    width = float(spread)
    scores = torch.linspace(-2, 2, DRAWS).view(-1, 4)

    def drawn(seed):
        return jitter(scores.shape, width, torch.Generator(device).manual_seed(seed))

    mine = scores.to(device).requires_grad_()
    factors = drawn(5)
    (mine * factors).sum().backward()
    found = factors.cpu().double()

    check.agree(drawn(5).cpu(), factors.cpu(), "factors of the same seed")
    check.that(not torch.equal(drawn(6).cpu(), factors.cpu()), "another seed gives the same factors")
    # One rounding at each bound.
    low, high = float(found.min()), float(found.max())
    edge = 2.0**-23
    check.that(1 - width - edge <= low and high <= 1 + width + edge, f"factors are between {low} and {high}")
    limit = STANDARD_ERRORS * width / math.sqrt(3 * DRAWS)
    check.that(abs(float(found.mean()) - 1) <= limit, f"the mean of the factors is {float(found.mean())}, not 1")
    check.that(high - low > 1.9 * width, f"the factors cover {high - low} of {2 * width}")
    check.agree(mine.grad.cpu(), factors.cpu(), "the gradient of scores with random factors")


@case("moe.noise.gumbel", requires=[*NEEDS, RNG_GENERATOR], axes={"temperature": ("0.5", "1.0", "2.0")})
def test_gumbel(check, device, temperature):
    """With Gumbel noise, experts are chosen as often as their probabilities say."""
    row = torch.tensor([1.0, 0.0, -0.5, 2.0, 0.25]) / float(temperature)
    generator = torch.Generator(device).manual_seed(8)

    noisy = row.to(device) + gumbel((DRAWS, EXPERTS), generator)
    counts = torch.bincount(noisy.argmax(-1), minlength=EXPERTS).cpu()

    for expert, chance in enumerate(softmax_by_hand(row.double().tolist())):
        share = int(counts[expert]) / DRAWS
        limit = STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / DRAWS)
        check.that(abs(share - chance) <= limit, f"expert {expert} is chosen in {share} of all draws, not {chance}")


@case("moe.noise.routes", requires=[*NEEDS, RNG_GENERATOR], axes={"choices": CHOICES[:3]})
def test_noisy_routes(check, device, choices):
    """Noise from a seeded generator gives the same routes again, and the generator alone decides about them."""
    scores = logits("random").to(device)

    def routes(seed):
        noisy = scores * jitter(scores.shape, 0.5, torch.Generator(device).manual_seed(seed))
        torch.rand(7, device=device)  # other random numbers in between do not matter
        return noisy, route(noisy, int(choices), TOKENS).experts.cpu()

    noisy, first = routes(3)
    _, again = routes(3)
    _, other = routes(4)

    by_hand = [sorted(range(EXPERTS), key=lambda one, row=row: (-row[one], one)) for row in noisy.cpu().tolist()]
    check.equal(first.cpu().tolist(), [order[: int(choices)] for order in by_hand], "the experts with noise")
    check.equal(again.cpu().tolist(), first.cpu().tolist(), "the experts with the same noise")
    check.that(other.cpu().tolist() != first.cpu().tolist(), "another seed gives the same routes for all tokens")


def least_room(factor, choices):
    """Return the capacity of an expert for a factor of the mean load; at least 1."""
    return max(1, math.ceil(TOKENS * choices / EXPERTS * float(factor)))


@case("moe.dropping", requires=NEEDS,
      axes={"policy": ("probability", "position", "last"), "choices": CHOICES[:3], "factor": FACTORS})  # fmt: skip
def test_dropping(check, device, policy, choices, factor):
    """A full expert keeps the tokens that the policy prefers; dropped tokens give zeros and get no gradient."""
    given, count = logits("random"), int(choices)
    room = least_room(factor, count)
    places = torch.arange(float(TOKENS)).view(-1, 1).expand(TOKENS, EXPERTS)
    priority = {"probability": torch.softmax(given, -1), "position": -places, "last": places}[policy]
    x = torch.randn(TOKENS, WIDTH).to(device).requires_grad_()

    routing = route_by_priority(given.to(device), count, room, priority.to(device))
    combine(dispatch(x, routing, EXPERTS, room), routing, TOKENS).sum().backward()

    # Probabilities of one expert differ by far more than their rounding, so the host's order is the only one.
    expected = kept_by_hand(given.double().tolist(), count, room, priority.double().tolist())
    experts, kept = routing.experts.cpu(), routing.kept.cpu()
    found = [{token for token in range(TOKENS) if bool((kept[token] & (experts[token] == one)).any())}
             for one in range(EXPERTS)]  # fmt: skip
    check.equal(found, expected, "the tokens that each expert keeps")
    shares = torch.zeros(TOKENS, 1, dtype=torch.float64)
    for token, row in enumerate(given.double().tolist()):
        chances = softmax_by_hand(row)
        shares[token] = sum(chances[expert] for expert in range(EXPERTS) if token in expected[expert])
    check.that(bool(shares.any()), "all tokens are dropped")
    near(check, "the gradient of the tokens", x.grad, shares.expand(TOKENS, WIDTH), Near.SUMS)
    check.metric("dropped", int((~kept).sum()))


@case("moe.dropping.random", requires=[*NEEDS, RNG_GENERATOR], axes={"capacity": ("1", "3")})
def test_random_dropping(check, device, capacity):
    """Random priorities fill every expert, repeat with their seed, and prefer no token."""
    given, room, runs = logits("random").to(device), int(capacity), 64
    wishes = torch.bincount(route(given, 2, TOKENS).experts.flatten(), minlength=EXPERTS).cpu().tolist()

    def keeps(seed):
        priority = torch.rand(TOKENS, EXPERTS, generator=torch.Generator(device).manual_seed(seed), device=device)
        routing = route_by_priority(given, 2, room, priority)
        return torch.nn.functional.one_hot(routing.experts, EXPERTS).mul(routing.kept.unsqueeze(-1)).sum(1).cpu()

    times = torch.zeros(TOKENS, EXPERTS, dtype=torch.int64)
    for seed in range(runs):
        kept = keeps(seed)
        check.equal(kept.sum(0).cpu().tolist(), [min(room, wish) for wish in wishes], "the tokens kept by each expert")
        times += kept
    check.equal(keeps(0).cpu().tolist(), keeps(0).cpu().tolist(), "the tokens kept with the same seed")
    order = torch.argsort(logits("random"), dim=-1, descending=True, stable=True)[:, :2]
    wanted = torch.nn.functional.one_hot(order, EXPERTS).sum(1).bool()
    check.equal(int(times[~wanted].sum()), 0, "tokens kept by an expert that they did not choose")
    for expert, wish in enumerate(wishes):
        chance = min(room, wish) / wish
        limit = STANDARD_ERRORS * math.sqrt(runs * chance * (1 - chance))
        off = (times[wanted[:, expert], expert] - runs * chance).abs().max()
        check.that(float(off) <= limit, f"expert {expert} keeps a token {off} times more or less often than others")


@case("moe.layer", requires=NEEDS, axes={"choices": CHOICES, "factor": FACTORS})
def test_layer(check, device, choices, factor):
    """A whole layer with router, queues and experts has the output and all gradients of a loop over tokens."""
    count = int(choices)
    room = least_room(factor, count)
    generator = torch.Generator().manual_seed(14)
    x = torch.randn(TOKENS, WIDTH, generator=generator)
    # Scores of these numbers lie further apart than float32 rounds, so every device chooses the same experts.
    router = torch.randn(WIDTH, EXPERTS, generator=generator)
    weights = torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator) * WIDTH**-0.5
    exact = [tensor.double().requires_grad_() for tensor in (x, router, weights)]
    expected, used = by_tokens(*exact, count, room)
    expected.square().sum().backward()
    mine = [tensor.to(device).requires_grad_() for tensor in (x, router, weights)]

    routing = route(mine[0] @ mine[1], count, room)
    slots = torch.tanh(torch.bmm(dispatch(mine[0], routing, EXPERTS, room), mine[2]))
    output = combine(slots, routing, TOKENS)
    output.square().sum().backward()

    near(check, "the output", output, expected.detach(), Near.FORWARD)
    for name, found, wanted in zip(("tokens", "router", "experts"), mine, exact, strict=True):
        near(check, f"the gradient of the {name}", found.grad, wanted.grad, Near.GRADIENTS,
             largest=float(exact[2].grad.abs().max()) if name == "experts" else None)  # fmt: skip
    check.metric("used", used)


def by_tokens(x, router, weights, choices, room):
    """Return a layer's output, computed token by token, and the number of choices that were not dropped."""
    scores = x @ router
    orders = [sorted(range(EXPERTS), key=lambda one, row=row: (-row[one], one))[:choices] for row in scores.tolist()]
    queues, rows = [0] * EXPERTS, [x.new_zeros(WIDTH) for _ in range(TOKENS)]
    for choice in range(choices):
        for token, order in enumerate(orders):
            expert = order[choice]
            queues[expert] += 1
            if queues[expert] <= room:
                share = torch.softmax(scores[token, order], dim=-1)[choice]
                rows[token] = rows[token] + share * torch.tanh(x[token] @ weights[expert])
    return torch.stack(rows), sum(min(queue, room) for queue in queues)


@case("moe.residual", requires=[*NEEDS, DTYPE], axes={"dtype": ("float32", "bfloat16")})
def test_residual(check, device, dtype):
    """A dense layer beside the expert, weighted by a learned coefficient, has the sum's output and gradients."""
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(21)
    shapes = (TOKENS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 2)
    given = [torch.randn(shape, generator=generator).to(kind) for shape in shapes]

    def layer(x, dense, expert, mixing):
        shares = torch.softmax(x @ mixing, dim=-1)
        return (x @ dense) * shares[:, :1] + torch.tanh(x @ expert) * shares[:, 1:]

    exact = [tensor.double().requires_grad_() for tensor in given]
    expected = layer(*exact)
    expected.sum().backward()
    mine = [tensor.to(device).requires_grad_() for tensor in given]
    output = layer(*mine)
    output.sum().backward()

    near(check, "the output", output, expected.detach(), Near.FORWARD)
    for name, found, wanted in zip(("tokens", "dense layer", "expert", "mixing"), mine, exact, strict=True):
        near(check, f"the gradient of the {name}", found.grad, wanted.grad, Near.GRADIENTS)

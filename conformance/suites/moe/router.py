"""Parts of a router: losses on its scores, noise in them, and the choice of tokens that a full expert drops."""

from __future__ import annotations

import math

import torch

from .routing import Routing


def balance_loss(logits, experts):
    """Return the loss that is least for even load (Fedus et al., 2021, arXiv:2101.03961, equation 4).

    It is the number of experts times the sum over experts of share of choices times mean probability. ``experts`` are
    the chosen numbers, (tokens, choices); they carry no gradient.
    """
    count = logits.shape[-1]
    shares = torch.nn.functional.one_hot(experts, count).to(logits.dtype).mean((0, 1))
    return count * (shares * torch.softmax(logits, dim=-1).mean(0)).sum()


def balance_by_hand(logits, experts):
    """Return that loss and its gradient by the logits, for lists of numbers."""
    tokens, count = len(logits), len(logits[0])
    shares = [sum(row.count(expert) for row in experts) / (tokens * len(experts[0])) for expert in range(count)]
    loss, gradients = 0.0, []
    for row in logits:
        chances = softmax_by_hand(row)
        mean = sum(share * chance for share, chance in zip(shares, chances, strict=True))
        loss += count * mean / tokens
        gradients.append(
            [count / tokens * chance * (share - mean) for share, chance in zip(shares, chances, strict=True)]
        )
    return loss, gradients


def size_loss(logits):
    """Return the mean squared logarithm of the sums of exponents (Zoph et al., 2022, arXiv:2202.08906, equation 5)."""
    return torch.logsumexp(logits, dim=-1).square().mean()


def size_by_hand(logits):
    """Return that loss and its gradient by the logits, for lists of numbers."""
    sums = [max(row) + math.log(sum(math.exp(value - max(row)) for value in row)) for row in logits]
    loss = sum(value * value for value in sums) / len(logits)
    gradients = [
        [2 * value / len(logits) * chance for chance in softmax_by_hand(row)]
        for row, value in zip(logits, sums, strict=True)
    ]
    return loss, gradients


def softmax_by_hand(row):
    """Return the probabilities of one row of numbers."""
    exponents = [math.exp(value - max(row)) for value in row]
    return [exponent / sum(exponents) for exponent in exponents]


def jitter(shape, spread, generator):
    """Return factors between 1 - spread and 1 + spread, as Switch Transformer's routers use them."""
    return 1 - spread + 2 * spread * torch.rand(shape, generator=generator, device=generator.device)


def gumbel(shape, generator):
    """Return Gumbel numbers: adding them to logits and taking the largest draws from the softmax."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    # rand() may return 0, whose logarithm is infinite.
    return -torch.log(-torch.log(uniform.clamp(min=1e-7)))


def route_by_priority(logits, choices, capacity, priority):
    """Return the routing in which a full expert keeps the tokens of the highest ``priority``, (tokens, experts).

    Among equal priorities the lower token wins. Weights are softmax values of all experts, 0 for dropped choices.
    """
    count = logits.shape[-1]
    experts = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :choices]
    wanted = torch.nn.functional.one_hot(experts, count).sum(1).bool()
    ranked = torch.where(wanted, priority, -torch.inf)
    order = torch.argsort(ranked, dim=0, descending=True, stable=True)
    tokens = torch.arange(len(logits), device=logits.device).view(-1, 1).expand_as(order)
    places = torch.empty_like(order).scatter(0, order, tokens).gather(1, experts)
    kept = places < capacity
    weights = torch.where(kept, torch.softmax(logits, dim=-1).gather(-1, experts), 0.0)
    return Routing(experts, places, weights, kept)


def kept_by_hand(logits, choices, capacity, priority):
    """Return, for each expert, the set of tokens that it keeps, for lists of numbers."""
    wanting = [[] for _ in logits[0]]
    for token, row in enumerate(logits):
        for expert in sorted(range(len(row)), key=lambda expert, row=row: (-row[expert], expert))[:choices]:
            wanting[expert].append(token)
    return [
        set(sorted(tokens, key=lambda token, expert=expert: (-priority[token][expert], token))[:capacity])
        for expert, tokens in enumerate(wanting)
    ]

"""Gating with expert capacity on any device, its reference in plain Python, and offsets of grouped products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Cell, Mode


@dataclass(frozen=True)
class Routing:
    """Routing of tokens (rows) by choice (columns): the expert, the place in its queue, the weight, whether kept."""

    experts: Tensor
    places: Tensor
    weights: Tensor
    kept: Tensor


def route(logits, choices, capacity):
    """Return the routing of each token to its ``choices`` best experts, for logits (tokens, experts).

    Ties go to the expert with the lower number. Queues fill in the order of tokens, and all first choices come before
    all second choices (Lepikhin et al., 2020, arXiv:2006.16668). Weights are softmax values normalized over the chosen
    experts; a choice beyond an expert's ``capacity`` is dropped and has weight 0.
    """
    tokens, count = logits.shape
    # A stable sort puts the lower number first among ties.
    experts = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :choices]
    requests = torch.nn.functional.one_hot(experts.t().reshape(-1), count)
    places = ((requests.cumsum(0) - 1) * requests).sum(-1).view(choices, tokens).t()
    chosen = torch.softmax(logits, dim=-1).gather(-1, experts)
    kept = places < capacity
    weights = torch.where(kept, chosen / chosen.sum(-1, keepdim=True), 0.0)
    return Routing(experts, places, weights, kept)


def route_by_hand(logits, choices, capacity):
    """Return (expert, place, weight, kept) by token and choice, as route() gives it, for lists of numbers."""
    orders = [sorted(range(len(row)), key=lambda expert, row=row: (-row[expert], expert))[:choices] for row in logits]
    queues = [0] * len(logits[0])
    found = [[None] * choices for _ in logits]
    for choice in range(choices):
        for token, row in enumerate(logits):
            expert = orders[token][choice]
            total = sum(math.exp(row[candidate]) for candidate in orders[token])
            kept = queues[expert] < capacity
            found[token][choice] = (expert, queues[expert], math.exp(row[expert]) / total if kept else 0.0, kept)
            queues[expert] += 1
    return found


def dispatch(x, routing, count, capacity):
    """Return every expert's queue of tokens, (experts, capacity, width), with zeros in free places."""
    slots = x.new_zeros(count * capacity, x.shape[-1])
    tokens = torch.arange(x.shape[0], device=x.device).view(-1, 1).expand_as(routing.kept)[routing.kept]
    return slots.index_copy(0, slot_numbers(routing, capacity), x[tokens]).view(count, capacity, -1)


def combine(slots, routing, tokens):
    """Return the weighted sum of the experts' outputs for each token, (tokens, width); zeros for a dropped token."""
    capacity, flat = slots.shape[1], slots.flatten(0, 1)
    numbers = torch.arange(tokens, device=slots.device).view(-1, 1).expand_as(routing.kept)[routing.kept]
    weighted = flat[slot_numbers(routing, capacity)] * routing.weights[routing.kept].unsqueeze(-1)
    return slots.new_zeros(tokens, slots.shape[-1]).index_add(0, numbers, weighted)


def slot_numbers(routing, capacity):
    """Return the index, in the concatenated queues, of every choice that is kept."""
    return (routing.experts * capacity + routing.places)[routing.kept]


def grouped_cell(dtype):
    """Return the capability cell of torch.nn.functional.grouped_mm with gradients, in that dtype."""
    return Cell("operators.nn.functional.grouped_mm", dtype, Mode.TRAINING.value)


def ends_of(experts, count):
    """Return the row at which each expert's rows end, (count) int32, once rows are sorted by expert.

    It is the ``offs`` argument of grouped_mm.
    """
    return torch.bincount(experts, minlength=count).cumsum(0).to(torch.int32)

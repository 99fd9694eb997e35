"""Expert parallelism cases: experts on several ranks agree with one process."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .routing import ends_of, grouped_cell

#: It takes seconds to import. It is imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo",)
NEEDS = (COMM, COMM_ALL_TO_ALL, COMM_DTYPE.on("float32"), COMM_DTYPE.on("int64"))
#: Kernels of grouped products need rows whose size is a multiple of 16 bytes: a width of 8.
TOKENS, EXPERTS, WIDTH = 12, 4, 8


def whole():
    """Return the tokens of all ranks, the expert of each token, and the experts' weights."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(TOKENS, WIDTH, generator=generator)
    weights = torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator)
    # Skewed load: most ranks send nothing to the last expert.
    return x, torch.tensor([0, 1, 1, 2, 0, 0, 1, 3, 2, 2, 2, 0]), weights


def expert(x, weight):
    return torch.tanh(x @ weight)


def exchanged(x, given, taken):
    """Exchange rows with all ranks and return the received ones; gradients travel in the opposite direction."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(x, taken, given, dist.group.WORLD)


@case("moe.expert_parallel", requires=NEEDS, world_size=(2, 4))
def test_expert_parallel(check, device, rank, world_size, group):
    """Tokens sent to the ranks of their experts and back give the outputs and gradients of one process."""
    _, chosen, _ = whole()
    check_experts(check, device, rank, world_size, chosen, one_by_one)


@case("moe.expert_parallel.grouped", requires=(*NEEDS, DTYPE.on("int32"), grouped_cell("float32")),
      world_size=(2, 4))  # fmt: skip
def test_grouped_expert_parallel(check, device, rank, world_size, group):
    """Experts that compute in one grouped product on each rank give the outputs and gradients of one process."""
    _, chosen, _ = whole()
    chosen[chosen == EXPERTS - 1] = 0  # the last expert gets no token
    check_experts(check, device, rank, world_size, chosen, in_groups)


def check_experts(check, device, rank, world_size, chosen, compute):
    """Check outputs and gradients of parallel experts, each computed by ``compute``, against float64."""
    x, _, weights = whole()
    exact_x, exact_weights = x.double().requires_grad_(), weights.double().requires_grad_()
    exact = torch.stack([expert(exact_x[token], exact_weights[chosen[token]]) for token in range(TOKENS)])
    exact.square().sum().backward()
    each, rows = EXPERTS // world_size, slice(rank * TOKENS // world_size, (rank + 1) * TOKENS // world_size)
    mine = x[rows].to(device).requires_grad_()
    own = weights[rank * each : (rank + 1) * each].to(device).requires_grad_()

    output = through_experts(mine, chosen[rows].to(device), own, world_size, compute)
    output.square().sum().backward()

    largest = float(exact_weights.grad.abs().max())
    expected = exact_weights.grad[rank * each : (rank + 1) * each]
    near(check, "the output", output, exact.detach()[rows], Near.FORWARD)
    near(check, "the tokens' gradient", mine.grad, exact_x.grad[rows], Near.GRADIENTS)
    # The largest gradient of all experts is the scale: an expert without a token has only zeros.
    near(check, "the experts' gradient", own.grad, expected, Near.GRADIENTS, largest=largest)


def through_experts(mine, chosen, own, world_size, compute):
    """Return the experts' outputs for own tokens: sort by expert, send, compute, send back, unsort."""
    each = len(own)
    order = torch.argsort(chosen, stable=True)
    given = torch.bincount(chosen, minlength=each * world_size)
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given)
    sent, received = (part.view(world_size, each).sum(1).cpu().tolist() for part in (given, taken))
    arrived = exchanged(mine[order], sent, received)
    # Received rows are sorted by rank, then by expert.
    numbers = torch.arange(each, device=mine.device).repeat(world_size).repeat_interleave(taken)
    back = exchanged(compute(arrived, numbers, own), received, sent)
    return torch.empty_like(back).index_copy(0, order, back)


def one_by_one(arrived, numbers, own):
    """Return the experts' outputs, computed token by token."""
    if not len(numbers):
        return arrived @ own[0]  # stack() takes no empty list; this keeps the shape and the gradient's graph
    experts = numbers.cpu().tolist()
    return torch.stack([expert(token, own[number]) for token, number in zip(arrived, experts, strict=True)])


def in_groups(arrived, numbers, own):
    """Return the experts' outputs, computed in one grouped product: sort by expert, multiply, unsort."""
    order = torch.argsort(numbers, stable=True)
    made = torch.tanh(torch.nn.functional.grouped_mm(arrived[order], own, offs=ends_of(numbers, len(own))))
    return torch.empty_like(made).index_copy(0, order, made)

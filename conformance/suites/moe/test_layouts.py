"""Cases of experts that only some ranks share: copies of experts, split experts, agreed capacity, checkpoints."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import CHECKPOINT, COMM_ROOTED
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.comm.payloads import WORLDS

from .parallel import Layout, by_mask, exact_experts, through_group
from .routing import dispatch, route
from .test_experts import EXPERTS, NEEDS, TOKENS, WIDTH, whole

#: It takes seconds to import. It is imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.checkpoint.state_dict")
#: Numbers of ranks that share the experts, of four.
SIZES = ("1", "2", "4")


def check_layout(check, layout, device, own):
    """Check output and gradients of these own experts, whose gradients are summed over their copies."""
    _, chosen, _ = whole()
    exact_x, exact_weights, exact = exact_experts()
    mine = exact_x.detach()[layout.rows].float().to(device).requires_grad_()

    output = through_group(mine, chosen[layout.rows].to(device), layout, by_mask(own))
    output.square().sum().backward()
    gradient = own.grad.clone()
    dist.all_reduce(gradient, group=layout.copies)

    near(check, "the output", output, exact[layout.rows], Near.FORWARD)
    near(check, "the gradient of the tokens", mine.grad, exact_x.grad[layout.rows], Near.GRADIENTS)
    largest = float(exact_weights.grad.abs().max())
    near(check, "the gradient of own experts", gradient, layout.own(exact_weights.grad), Near.GRADIENTS,
         largest=largest)  # fmt: skip


@case("moe.copies", requires=NEEDS, axes={"experts": SIZES}, world_size=4)
def test_copies(check, device, experts, rank, world_size, group):
    """Groups of ranks with copies of the experts give the outputs of one process, and gradients that add up to its."""
    layout = Layout(device, int(experts), rank, world_size)
    own = layout.own(whole()[2]).to(device).requires_grad_()

    check_layout(check, layout, device, own)


@case("moe.checkpoint", requires=[*NEEDS, CHECKPOINT, COMM_ROOTED],
      axes={"experts": ("1-4", "2-4", "4-2", "4-1")}, world_size=4)  # fmt: skip
def test_checkpoint(check, device, experts, rank, world_size, group, shared_dir):
    """Experts that N ranks share are saved and loaded by M ranks, and go on with the outputs and gradients of one."""
    import torch.distributed.checkpoint as dcp

    before, after = (Layout(device, int(size), rank, world_size) for size in experts.split("-"))
    weights = whole()[2]
    # Adam's states have the layout of the weights, and other values.
    states = {"weights": weights, "moments": weights.flip(0) * 3}

    dcp.save({name: before.sharded(value.to(device)) for name, value in states.items()}, checkpoint_id=shared_dir)
    loaded = {name: after.sharded(torch.full_like(value, -9.0).to(device)) for name, value in states.items()}
    dcp.load(loaded, checkpoint_id=shared_dir)

    for name, value in states.items():
        check.equal(loaded[name].to_local().cpu(), after.own(value), f"the {name} of the rank's experts")
    check_layout(check, after, device, loaded["weights"].to_local().clone().requires_grad_())


@case("moe.tensor_parallel", requires=NEEDS, axes={"tokens": ("spread", "one-expert")}, world_size=4)
def test_tensor_parallel(check, device, tokens, rank, world_size, group):
    """Experts on two groups of ranks, each expert split over two ranks, have one process's outputs and gradients."""
    # The two ranks of a copy hold the same tokens, and each holds a half of every own expert.
    layout = Layout(device, 2, rank, world_size)
    half, part = layout.mesh.get_local_rank("copies"), WIDTH // 2
    generator = torch.Generator().manual_seed(31)
    into, out = (torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator) for _ in "ab")
    x, chosen, _ = whole()
    if tokens == "one-expert":
        chosen = torch.full_like(chosen, EXPERTS - 1)
    rows = slice(layout.part * TOKENS // 2, (layout.part + 1) * TOKENS // 2)
    exact = [tensor.double().requires_grad_() for tensor in (x, into, out)]
    hidden = torch.tanh(torch.stack([exact[0][token] @ exact[1][chosen[token]] for token in range(TOKENS)]))
    expected = torch.stack([hidden[token] @ exact[2][chosen[token]] for token in range(TOKENS)])
    expected.square().sum().backward()
    cut = slice(half * part, (half + 1) * part)
    first = layout.own(into)[:, :, cut].contiguous().to(device).requires_grad_()
    last = layout.own(out)[:, cut].contiguous().to(device).requires_grad_()
    mine = x[rows].to(device).requires_grad_()

    def compute(arrived, numbers):
        made = torch.matmul(torch.tanh(torch.matmul(arrived, first)), last)
        own = numbers == torch.arange(layout.each, device=device).view(-1, 1)
        return torch.where(own.unsqueeze(-1), made, 0.0).sum(0)

    summand = through_group(mine, chosen[rows].to(device), layout, compute)
    output = summand.detach().clone()
    dist.all_reduce(output, group=layout.copies)
    summand.backward(2 * output)  # of the sum of squares
    dist.all_reduce(mine.grad, group=layout.copies)

    near(check, "the output", output, expected.detach()[rows], Near.FORWARD)
    near(check, "the gradient of the tokens", mine.grad, exact[0].grad[rows], Near.GRADIENTS)
    for name, found, wanted in (("first", first, exact[1].grad[:, :, cut]), ("second", last, exact[2].grad[:, cut])):
        near(check, f"the gradient of the {name} products", found.grad, layout.own(wanted), Near.GRADIENTS,
             largest=float(wanted.abs().max()))  # fmt: skip


@case("moe.capacity.agreed", requires=NEEDS, axes={"choices": ("1", "2")}, world_size=WORLDS)
def test_agreed_capacity(check, device, choices, rank, world_size, group):
    """Without dropping, the fullest queue of any rank is the capacity of all ranks, and every token finds a place."""
    count, each = int(choices), 5
    scores = torch.randn(world_size * each, EXPERTS, generator=torch.Generator().manual_seed(17))
    scores[-each:, 2] += 9  # the tokens of the last rank crowd one expert
    mine = scores[rank * each : (rank + 1) * each].to(device)
    x = torch.arange(1.0, each + 1, device=device).view(-1, 1) + 100 * rank

    wanted = torch.bincount(route(mine, count, each).experts.flatten(), minlength=EXPERTS).max().float()
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    room = int(wanted.item())
    slots = dispatch(x, route(mine, count, room), EXPERTS, room)
    arrived = torch.empty((world_size * EXPERTS, room, 1), device=device)
    dist.all_gather_into_tensor(arrived, slots)

    loads = []
    for other in range(world_size):
        orders = [sorted(range(EXPERTS), key=lambda one, row=row: (-row[one], one))[:count]
                  for row in scores[other * each : (other + 1) * each].cpu().tolist()]  # fmt: skip
        loads.append([[token for token, order in enumerate(orders) if expert in order] for expert in range(EXPERTS)])
    check.equal(room, max(len(queue) for load in loads for queue in load), "the capacity of all ranks")
    for other, load in enumerate(loads):
        for expert, queue in enumerate(load):
            found = sorted(value for value in arrived[other * EXPERTS + expert].flatten().cpu().tolist() if value)
            check.equal(found, [token + 1.0 + 100 * other for token in queue], f"queue {expert} of rank {other}")

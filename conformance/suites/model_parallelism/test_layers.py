"""Tensor parallelism cases: products sharded by columns and rows, attention heads, a bias, and random numbers."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, RNG_STATE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

RANK_IMPORTS = ("torch._dynamo", "torch.distributed.tensor.parallel")
NEEDS = (COMM, COMM_DTYPE.on("float32"))
WIDTH = 6


class Mlp(nn.Module):
    """Two-layer network; the first layer is sharded by columns, the second by rows."""

    def __init__(self, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def mlp(hidden):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hidden)
        return Mlp(hidden)


def mesh_of(device, world_size):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size,))


def parallel(model, device, world_size):
    """Return the model with its first product sharded by columns and its second by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    return parallelize_module(model.to(device), mesh_of(device, world_size), plan)


def tokens():
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))


@case("model_parallelism.mlp", requires=NEEDS, axes={"hidden": ("12", "7")}, world_size=(2, 3))
def test_mlp(check, device, hidden, rank, world_size, group):
    """Output and gradients agree with the whole layers, whether or not the ranks divide the hidden width."""
    exact, x = mlp(int(hidden)).double(), tokens()
    expected = exact(x.double())
    expected.square().sum().backward()
    model, inputs = parallel(mlp(int(hidden)), device, world_size), x.to(device).requires_grad_()

    output = model(inputs)
    output.square().sum().backward()

    near(check, "the output", output, expected, Near.FORWARD)
    check.same_on_all_ranks("output", output)
    found = dict(model.named_parameters())
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of {name}", found[name].grad.full_tensor(), parameter.grad, Near.GRADIENTS)


@case("model_parallelism.bias", requires=NEEDS, world_size=(2, 3))
def test_bias(check, device, world_size, group):
    """A bias after a product that is summed over ranks is added once and gets its gradient once."""
    model = mlp(12)
    with torch.no_grad():
        model.down.weight.zero_()
        model.down.bias.copy_(torch.arange(1.0, WIDTH + 1))
    model = parallel(model, device, world_size)

    output = model(tokens().to(device))
    output.sum().backward()

    check.equal(output.detach().cpu(), torch.arange(1.0, WIDTH + 1).expand(5, WIDTH), "the output")
    check.equal(model.down.bias.grad.full_tensor().cpu(), torch.full((WIDTH,), 5.0), "the bias' gradient")


def attention(x, query, key, value):
    """Return self-attention, (heads, tokens, size), of ``x`` (heads, tokens, width) by weights (heads, width, size)."""
    q, k, v = (torch.matmul(x, weight) for weight in (query, key, value))
    return torch.softmax(q @ k.transpose(-1, -2) / 2, dim=-1) @ v


@case("model_parallelism.heads", requires=NEEDS, axes={"heads": ("3", "4")}, world_size=2)
def test_heads(check, device, heads, rank, world_size, group):
    """Attention heads sharded over two ranks agree with whole attention, also where the ranks do not divide them."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    generator = torch.Generator().manual_seed(8)
    weights = [torch.randn(int(heads), WIDTH, 4, generator=generator) for _ in "qkv"]
    exact = [weight.double().requires_grad_() for weight in weights]
    expected = attention(tokens().double().expand(int(heads), -1, -1), *exact)
    expected.square().sum().backward()
    mesh = mesh_of(device, world_size)
    cut = [distribute_tensor(weight.to(device), mesh, [Shard(0)]).requires_grad_() for weight in weights]
    x = distribute_tensor(tokens().to(device).expand(int(heads), -1, -1).contiguous(), mesh, [Shard(0)])

    output = attention(x, *cut)
    output.square().sum().backward()

    check.equal(str(output.placements), str((Shard(0),)), "the placements of the output")
    near(check, "the output", output.redistribute(mesh, [Replicate()]).to_local(), expected, Near.FORWARD)
    for name, weight, reference in zip(("query", "key", "value"), cut, exact, strict=True):
        near(check, f"the gradient of {name}", weight.grad.full_tensor(), reference.grad, Near.GRADIENTS)


@case("model_parallelism.placements", requires=[*NEEDS, COMM_ALL_TO_ALL], world_size=(2, 3))
def test_placements(check, device, rank, world_size, group):
    """A tensor keeps its values when it is resharded by rows and columns, and a partial sum is summed."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh, source = mesh_of(device, world_size), torch.arange(35.0).view(7, 5)
    tensor = distribute_tensor(source.to(device), mesh, [Shard(0)])

    for placement in (Shard(1), Replicate(), Shard(1), Shard(0)):
        tensor = tensor.redistribute(mesh, [placement])
        check.equal(tensor.full_tensor().cpu(), source, f"the tensor as {placement}")
    partial = DTensor.from_local(source.to(device) * (rank + 1), mesh, [Partial()])
    total = partial.redistribute(mesh, [Shard(0)]).full_tensor().cpu()
    check.equal(total, source * sum(range(1, world_size + 1)), "the sum of the ranks' parts")


@case("model_parallelism.rng", requires=[*NEEDS, RNG_STATE], world_size=(2, 3))
def test_rng(accelerator, check, device, rank, world_size, group):
    """A random stream that all ranks share and a stream for each rank stay independent when used in turn."""
    accelerator.manual_seed(5)
    shared = accelerator.get_rng_state()
    accelerator.manual_seed(100 + rank)
    own = accelerator.get_rng_state()
    drawn = {"shared": [], "own": []}

    for _ in range(3):
        accelerator.set_rng_state(shared)
        drawn["shared"].append(torch.rand(9, device=device))
        shared = accelerator.get_rng_state()
        accelerator.set_rng_state(own)
        drawn["own"].append(torch.rand(9, device=device))
        own = accelerator.get_rng_state()

    same, mine = (torch.cat(drawn[name]) for name in ("shared", "own"))
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    torch.distributed.all_gather(everyone, mine)
    check.same_on_all_ranks("the shared stream", same)
    check.equal(len({tuple(drawn.tolist()) for drawn in everyone}), world_size, "number of different rank streams")
    # Three draws of 9 numbers: a state that did not advance would repeat them.
    check.equal(len(set(same.tolist())), 27, "number of different values in the shared stream")

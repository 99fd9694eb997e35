"""Cases of DeepSpeed's own layers: LoRA on sharded weights, attention over sequence parts, and tiles of a sequence."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import cases
from conformance.suites.sequence_parallelism.cutting import attention, heads_for
from conformance.suites.ulysses_alst.tiling import IGNORED, Network, loss_sum

from .parallel.deepspeed_engine import IMPORTS, deepspeed_on
from .parallel.planned import planned

RANK_IMPORTS = IMPORTS
NEEDS = (COMM, COMM_DTYPE.on("float32"), DTYPE.on("float32"))
INPUTS, OUTPUTS, TOKENS, RANK, ALPHA = 24, 10, 7, 4, 6.0
#: Query heads and key heads: one for each, four query heads of one key, and fewer key heads than two ranks.
HEADS = {"equal": (6, 6), "grouped": (8, 2), "few": (4, 1)}
HIDDEN, MIDDLE, WORDS, BATCH, LENGTH = 6, 11, 13, 2, 9
#: Tiles of the 9 (or 18) tokens: one, and a number that does not divide them.
TILES = ("1", "4")


def _of(way, key, values, ranks, *needs):
    return [planned(f"deepspeed.{way}", ((key, str(value)),), (*NEEDS, *needs), ranks) for value in values]


def _value(case):
    (_, value), *_ = case.axes
    return value


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain_attention(query, key, value):
    """Return causal attention (tokens, batch, heads, size) in which each key head serves a group of query heads."""
    per_head = [heads_for(tensor.permute(1, 2, 0, 3), query.shape[2]) for tensor in (query, key, value)]
    return attention(*per_head).permute(2, 0, 1, 3)


class LocalAttention(nn.Module):
    """Attention of one rank: own heads, all tokens."""

    def forward(self, query, key, value):
        return plain_attention(query, key, value).contiguous()


def deepspeed_on_ranks(accelerator, device, ranks):
    """Make DeepSpeed use the accelerator and the existing process group; its engine would do the second."""
    deepspeed = deepspeed_on(accelerator, device, ranks)
    backend = accelerator.communication_backend_name()
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, dist_init_required=False, verbose=False)


@cases(lambda: _of("lora", "shards", (1, 2), 2))
def test_lora(accelerator, check, device, case, rank, world_size, group):
    """A LoRA layer computes y = x W^T + (alpha / rank) (x A^T) B^T with all gradients, with W whole or in parts."""
    deepspeed_on_ranks(accelerator, device, world_size)
    from deepspeed.linear import LoRAConfig, OptimizedLinear

    shards, scale = int(_value(case)), ALPHA / RANK
    settings = LoRAConfig(lora_r=RANK, lora_alpha=ALPHA, base_weight_sharding=shards)
    layer = OptimizedLinear(INPUTS, OUTPUTS, lora_config=settings, dtype=torch.float32, device=device).to(device)
    weight, down, up = draw(OUTPUTS, INPUTS, seed=1), draw(RANK, INPUTS, seed=2), draw(OUTPUTS, RANK, seed=3)
    with torch.no_grad():
        part = weight if shards == 1 else weight.flatten().chunk(shards)[rank]
        layer.weight.copy_(part.view_as(layer.weight))
        layer.lora_weight_1.weight.copy_(down)
        layer.lora_weight_2.weight.copy_(up)
    source, upstream = draw(TOKENS, INPUTS, seed=4 + rank), draw(TOKENS, OUTPUTS, seed=8 + rank)
    given = source.to(device).requires_grad_()

    output = layer(given)
    output.backward(upstream.to(device))

    x, dy, w, a, b = (tensor.double() for tensor in (source, upstream, weight, down, up))
    near(check, "the output", output, x @ w.T + scale * (x @ a.T) @ b.T, Near.FORWARD)
    near(check, "the input's gradient", given.grad, dy @ w + scale * (dy @ b) @ a, Near.GRADIENTS)
    near(check, "A's gradient", layer.lora_weight_1.weight.grad, scale * (dy @ b).T @ x, Near.GRADIENTS)
    near(check, "B's gradient", layer.lora_weight_2.weight.grad, scale * dy.T @ (x @ a.T), Near.GRADIENTS)
    check.equal(layer.weight.numel(), weight.numel() // shards, "number of elements of the base that a rank holds")
    check.that(layer.weight.grad is None, "the frozen base has a gradient")


@cases(lambda: _of("attention", "heads", HEADS, 2, COMM_ALL_TO_ALL))
def test_attention(accelerator, check, device, case, rank, world_size, group):
    """Attention over sequence parts gives the output and gradients of one process; too few key heads are refused."""
    deepspeed_on_ranks(accelerator, device, world_size)
    import torch.distributed as dist
    from deepspeed.sequence.layer import DistributedAttention

    queries, keys = HEADS[_value(case)]
    whole = [draw(LENGTH - 1, BATCH, heads, 4, seed=seed) for seed, heads in enumerate((queries, keys, keys))]
    mine = [tensor.chunk(world_size)[rank].to(device).requires_grad_() for tensor in whole]
    layer = DistributedAttention(LocalAttention(), dist.group.WORLD)

    if keys < world_size:
        message = f"a rank without a key head gives {_raised(layer, mine)!r}; DeepSpeed's AssertionError is needed"
        check.that("must be at least the sequence parallel size" in _raised(layer, mine), message)
        sums = torch.ones(3, device=device)
        dist.all_reduce(sums)
        check.equal(sums.cpu(), torch.full((3,), float(world_size)), "a sum over ranks after the refusal")
        return
    output = layer(*mine, 1)
    output.square().sum().backward()

    exact = [tensor.double().requires_grad_() for tensor in whole]
    expected = plain_attention(*exact)
    expected.square().sum().backward()
    near(check, "the output", output.view(-1, BATCH, queries, 4), expected.chunk(world_size)[rank], Near.FORWARD)
    for name, tensor, right in zip(("queries", "keys", "values"), mine, exact, strict=True):
        largest = float(right.grad.abs().max())
        part = right.grad.chunk(world_size)[rank]
        near(check, f"the gradient of {name}", tensor.grad, part, Near.GRADIENTS, largest=largest)


def _raised(layer, parts):
    """Return the message of the AssertionError that a call raises, or an empty text."""
    try:
        layer(*parts, 1)
    except AssertionError as error:
        return str(error)
    return ""


@cases(lambda: _of("tiled_network", "tiles", TILES, 1))
def test_tiled_network(accelerator, check, device, case, world_size, group):
    """A network computed in tiles of the sequence has the output and gradients of the whole one."""
    deepspeed_on(accelerator, device, world_size)
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP

    torch.manual_seed(1)
    model = Network(HIDDEN, MIDDLE)
    exact, own = copy.deepcopy(model).double(), model.to(device)
    source, upstream = draw(BATCH, LENGTH, HIDDEN, seed=2), draw(BATCH, LENGTH, HIDDEN, seed=3)
    x, given = source.double().requires_grad_(), source.to(device).requires_grad_()
    expected = exact(x)
    expected.backward(upstream.double())

    output = TiledMLP.apply(Network.forward, own, given, int(_value(case)), list(own.parameters()))
    output.backward(upstream.to(device))

    near(check, "the output", output, expected, Near.FORWARD)
    near(check, "the input's gradient", given.grad, x.grad, Near.GRADIENTS)
    for (name, found), right in zip(own.named_parameters(), exact.parameters(), strict=True):
        near(check, f"the gradient of {name}", found.grad, right.grad, Near.GRADIENTS)


@cases(lambda: _of("tiled_loss", "tiles", TILES, 1))
def test_tiled_loss(accelerator, check, device, case, world_size, group):
    """A loss whose logits are computed in tiles has the value and gradients of the whole one."""
    deepspeed_on(accelerator, device, world_size)
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    head = nn.Linear(HIDDEN, WORDS, bias=False)
    with torch.no_grad():
        head.weight.copy_(draw(WORDS, HIDDEN, seed=1))
    exact, own, source = copy.deepcopy(head).double(), head.to(device), draw(BATCH, LENGTH, HIDDEN, seed=2)
    targets = torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(4))
    targets[0, 2], targets[1, -3:] = IGNORED, IGNORED
    x, given = source.double().requires_grad_(), source.to(device).requires_grad_()
    expected = functional.cross_entropy(exact(x).flatten(0, 1), targets.flatten(), reduction="sum")
    expected.backward()

    def loss_of(module, rows, labels):
        return loss_sum(rows, module.weight, labels)

    total = TiledFusedLogitsLoss.apply(
        loss_of, own, given, targets.to(device), None, int(_value(case)), list(own.parameters()), "sum"
    )
    total.backward()

    near(check, "the loss", total, expected.detach(), Near.FORWARD)
    near(check, "the input's gradient", given.grad, x.grad, Near.GRADIENTS)
    near(check, "the head's gradient", own.weight.grad, exact.weight.grad, Near.GRADIENTS)

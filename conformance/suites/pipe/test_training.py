"""Pipeline cases over several steps: replicas, checkpoints, tied weights, clipping and recomputed activations."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import CHECKPOINT, RNG_STATE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.runtime.engines import DDP_NEEDS

from .pipeline import BATCH, LAYERS, SINGLE, Pipeline, adam, data, evenly, loss_of, trained, whole
from .test_schedules import NEEDS
from .test_stages import check_gradients

#: Modules that take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.pipelining", "torch.distributed.checkpoint.state_dict")
STEPS = 3
CLIP = 0.05


def check_layers(check, layers, exact):
    """Check the weights of a rank's layers, by their numbers."""
    for number, module in layers.items():
        for (name, found), wanted in zip(module.named_parameters(), exact[number].parameters(), strict=True):
            near(check, f"layer {number}, {name}", found, wanted, Near.TRAJECTORY)


@case("pipe.training", requires=NEEDS, axes={"schedule": ("gpipe", "1f1b", "interleaved-zero-bubble")}, world_size=2)
def test_training(check, device, schedule, rank, world_size, group):
    """After several steps of an optimizer on each rank, weights and losses are those of one process."""
    exact, losses = trained(STEPS)
    pipeline = Pipeline(device, schedule, evenly(2 if schedule in SINGLE else 4))
    optimizer = adam(pipeline.parameters())

    for number in range(STEPS):
        optimizer.zero_grad()
        found = pipeline.step(*data(number))
        if pipeline.last:
            near(check, f"the loss of step {number}", torch.stack(found).mean(), losses[number], Near.TRAJECTORY)
        optimizer.step()

    check_layers(check, pipeline.layers, exact)


def groups_of_four(rank):
    """Return the group of this rank's pipeline and that of its replicas: ranks are (replica, stage)."""
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return pipelines[rank // 2], replicas[rank % 2]


@case("pipe.data_parallel", requires=[*NEEDS, *DDP_NEEDS], axes={"replicas": ("ddp", "by-hand")}, world_size=4)
def test_data_parallel(check, device, replicas, rank, world_size, group):
    """Two pipelines that average their gradients once a step train as one process does on the whole batch."""
    from torch.nn.parallel import DistributedDataParallel

    along, across = groups_of_four(rank)
    exact, _ = trained(STEPS)
    # DDP refuses several forward passes before a backward pass, as GPipe has them.
    schedule, wrap = "gpipe", None
    if replicas == "ddp":
        schedule, wrap = "1f1b", lambda layers: DistributedDataParallel(layers, process_group=across)
    pipeline = Pipeline(device, schedule, evenly(2), along, micro=3, wrap=wrap)
    optimizer = adam(pipeline.parameters())
    rows = slice(rank // 2 * BATCH // 2, (rank // 2 + 1) * BATCH // 2)

    for number in range(STEPS):
        optimizer.zero_grad()
        pipeline.step(*(tensor[rows] for tensor in data(number)))
        for parameter in pipeline.parameters() if replicas == "by-hand" else ():
            dist.all_reduce(parameter.grad, group=across)
            parameter.grad /= 2
        optimizer.step()

    check_layers(check, pipeline.layers, exact)
    gradients = torch.cat([parameter.grad.flatten() for parameter in pipeline.parameters()])
    both = torch.stack([gradients, -gradients])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=across)
    check.equal(both[0].cpu(), -both[1].cpu(), "the largest and the least gradient of the replicas")


@case("pipe.checkpoint", requires=[*NEEDS, CHECKPOINT], axes={"stages": ("2-2", "2-3", "3-2", "2-1")}, world_size=3)
def test_checkpoint(check, device, stages, rank, world_size, group, shared_dir):
    """Layers and optimizer states of N stages are saved, loaded into M stages, and go on as without a break."""
    before, after = (int(count) for count in stages.split("-"))
    exact, losses = trained(2 * STEPS)
    groups = {count: dist.new_group(list(range(count))) for count in dict.fromkeys((before, after))}

    if rank < before:
        pipeline = Pipeline(device, "1f1b", evenly(before), groups[before])
        optimizers = {number: adam(module.parameters()) for number, module in pipeline.layers.items()}
        train(pipeline, optimizers, 0)
        for number, module in pipeline.layers.items():
            state = {"layer": module.state_dict(), "optimizer": optimizers[number].state_dict()}
            torch.save(state, shared_dir / f"layer-{number}.pt")
    dist.barrier()

    check.that(True, "took part")  # a rank without a stage compares nothing else
    if rank < after:
        pipeline = Pipeline(device, "gpipe", evenly(after), groups[after], seed=7)
        optimizers = {number: adam(module.parameters()) for number, module in pipeline.layers.items()}
        for number, module in pipeline.layers.items():
            state = torch.load(shared_dir / f"layer-{number}.pt", map_location=device, weights_only=True)
            module.load_state_dict(state["layer"])
            optimizers[number].load_state_dict(state["optimizer"])
        found = train(pipeline, optimizers, STEPS)
        check_layers(check, pipeline.layers, exact)
        if pipeline.last:
            near(check, "the losses after the break", torch.stack(found), torch.stack(losses[STEPS:]), Near.TRAJECTORY)


def train(pipeline, optimizers, first):
    """Train for some steps, from that batch on; return the losses on the last rank."""
    found = []
    for number in range(first, first + STEPS):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        losses = pipeline.step(*data(number))
        for optimizer in optimizers.values():
            optimizer.step()
        if pipeline.last:
            found.append(torch.stack(losses).mean().detach())
    return found


class Embedding(nn.Module):
    """First stage: rows of a table, and the layers behind it."""

    def __init__(self, table, layers):
        super().__init__()
        self.table, self.layers = table, layers

    def forward(self, words):
        return self.layers(nn.functional.embedding(words, self.table))


class Head(nn.Module):
    """Last stage: the layers, and products with all rows of the table."""

    def __init__(self, table, layers):
        super().__init__()
        self.table, self.layers = table, layers

    def forward(self, x):
        return self.layers(x) @ self.table.t()


WORDS = 13


def table():
    return torch.randn(WORDS, 10, generator=torch.Generator().manual_seed(33))


def words(number):
    generator = torch.Generator().manual_seed(40 + number)
    return torch.randint(0, WORDS, (2, BATCH), generator=generator)


@case("pipe.tied.training", requires=NEEDS, axes={"schedule": tuple(SINGLE)}, world_size=2)
def test_tied_training(check, device, schedule, rank, world_size, group):
    """A table that the first stage reads and the last one multiplies stays one table through several steps."""
    exact, shared = whole(), table().double().requires_grad_()
    alone = adam([shared, *exact.parameters()])
    for number in range(STEPS):
        given, wanted = words(number)
        alone.zero_grad()
        nn.functional.cross_entropy(exact(shared[given]) @ shared.t(), wanted).backward()
        alone.step()
    own = table().to(device).requires_grad_()
    parameter = nn.Parameter(own.detach().clone())
    pipeline = Pipeline(device, schedule, evenly(2),
                        wrap=lambda layers: (Head if rank else Embedding)(parameter, layers))  # fmt: skip
    pipeline.schedule._loss_fn = nn.functional.cross_entropy
    optimizer = adam([parameter, *pipeline.parameters()])

    for number in range(STEPS):
        optimizer.zero_grad()
        pipeline.step(*words(number))
        dist.all_reduce(parameter.grad)
        optimizer.step()

    near(check, "the shared table", parameter, shared, Near.TRAJECTORY)
    check.same_on_all_ranks("table", parameter)
    check_layers(check, pipeline.layers, exact)


@case("pipe.clipping", requires=NEEDS, axes={"norm": ("2", "1", "inf")}, world_size=(2, 3))
def test_clipping(check, device, norm, rank, world_size, group):
    """Gradients are clipped by the norm over all stages, of any kind."""
    kind = float(norm)
    exact = whole()
    loss = loss_of(exact(data(0)[0].double()), data(0)[1].double())
    loss.backward()
    total = nn.utils.clip_grad_norm_(exact.parameters(), CLIP, kind)
    pipeline = Pipeline(device, "1f1b", evenly(world_size))

    losses = pipeline.step(*data(0))
    own = nn.utils.get_total_norm([parameter.grad for parameter in pipeline.parameters()], kind)
    if norm == "inf":
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
    else:
        own = own.pow(kind)
        dist.all_reduce(own)
        own = own.pow(1 / kind)
    nn.utils.clip_grads_with_norm_(pipeline.parameters(), CLIP, own)

    check.that(float(total) > CLIP, f"the norm {float(total):.3g} is not above {CLIP}, so nothing is clipped")
    near(check, "the norm over all stages", own, total, Near.GRADIENTS)
    check_gradients(check, pipeline, exact, losses, loss.detach())


class Recomputed(nn.Module):
    """Stage whose activations are dropped at random, and computed again in the backward pass."""

    def __init__(self, layers, again):
        super().__init__()
        self.layers, self.again = layers, again

    def forward(self, x):
        if not self.again:
            return self._dropped(x)
        return torch.utils.checkpoint.checkpoint(self._dropped, x, use_reentrant=False)

    def _dropped(self, x):
        return nn.functional.dropout(self.layers(x), 0.25)


@case("pipe.recomputed", requires=[*NEEDS, RNG_STATE], axes={"schedule": tuple(SINGLE)}, world_size=2)
def test_recomputed(accelerator, check, device, schedule, rank, world_size, group):
    """Stages that recompute their activations drop the same elements, and give the same bits of gradients."""
    gradients, outputs = [], []
    for again in (False, True):
        pipeline = Pipeline(device, schedule, evenly(2), wrap=lambda layers, again=again: Recomputed(layers, again))
        accelerator.manual_seed(50 + rank)
        losses = pipeline.step(*data(0))
        gradients.append([parameter.grad.cpu() for parameter in pipeline.parameters()])
        outputs.append(torch.stack(losses).cpu() if losses else None)

    for kept, again in zip(*gradients, strict=True):
        check.agree(again, kept, "a gradient with recomputed activations")
    check.that(any(bool(gradient.any()) for gradient in gradients[0]), "all gradients are 0")
    exact, loss = trained(1)
    check.equal(len(exact), LAYERS, "layers")
    if pipeline.last:
        check.agree(outputs[1], outputs[0], "the losses with recomputed activations")
        check.that(float(outputs[0].mean()) != float(loss[0]), "nothing was dropped")

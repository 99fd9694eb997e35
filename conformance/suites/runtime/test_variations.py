"""Data-parallel training beyond the plain step: rates that change, frozen layers, 16-bit gradients, uneven inputs."""

from __future__ import annotations

import math

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .engines import ENGINES, FSDP_NEEDS, ddp, engines
from .test_engines import NEEDS, REPLICATING, check_weights, mine, train
from .training import STEPS, batch, loss_of, model, reference, sgd, weights, whole

#: Bound of every gradient's elements. Some elements of the model are above it, some below.
BOUND = 0.02


def cosine(step):
    """Return the factor of the learning rate: a step of warm-up, then half a cosine."""
    return 0.25 if step == 0 else 0.5 * (1 + math.cos(math.pi * (step - 1) / STEPS))


@case("runtime.schedule", requires=NEEDS, axes={"engine": engines("ddp", "zero", "fsdp")}, world_size=2)
def test_schedule(check, device, engine, rank, world_size, group):
    """A schedule changes the learning rate of every step, as if the rate had been set by hand."""
    exact = model().double()
    by_hand = ENGINES[engine].optimizer(exact.parameters())
    start = by_hand.param_groups[0]["lr"]
    for step in range(STEPS):
        by_hand.param_groups[0]["lr"] = start * cosine(step)
        by_hand.zero_grad()
        loss_of(exact, *(tensor.double() for tensor in batch(step))).backward()
        by_hand.step()
    trained, stepping = ENGINES[engine].build(model(), device, world_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(stepping, cosine)

    for step in range(STEPS):
        check.equal(stepping.param_groups[0]["lr"], start * cosine(step), f"the learning rate of step {step}")
        stepping.zero_grad()
        loss_of(trained, *mine(step, rank, world_size, device)).backward()
        stepping.step()
        schedule.step()

    check_weights(check, trained, exact)


@case("runtime.frozen", requires=NEEDS, axes={"engine": engines("ddp", "fsdp")}, world_size=2)
def test_frozen(check, device, engine, rank, world_size, group):
    """A frozen layer keeps its bits and has no gradient, and the layers around it train as on one device."""
    exact = model().double()
    exact.second.requires_grad_(False)
    alone = ENGINES[engine].optimizer([value for value in exact.parameters() if value.requires_grad])
    start = model()
    start.second.requires_grad_(False)
    trained, stepping = ENGINES[engine].build(start, device, world_size)

    for step in range(STEPS):
        for optimizer in (alone, stepping):
            optimizer.zero_grad()
        loss_of(exact, *(tensor.double() for tensor in batch(step))).backward()
        loss_of(trained, *mine(step, rank, world_size, device)).backward()
        alone.step()
        stepping.step()

    check_weights(check, trained, exact)
    found = weights(trained)
    for name in ("second.weight", "second.bias"):
        check.equal(found[name], dict(model().named_parameters())[name].detach(), f"the frozen '{name}'")
    kept = [name for name, value in trained.named_parameters() if "second" in name and value.grad is not None]
    check.equal(kept, [], "frozen parameters with a gradient")


@case("runtime.clipping_by_value", requires=NEEDS, axes={"engine": engines("ddp", "fsdp")}, world_size=2)
def test_clipping_by_value(check, device, engine, rank, world_size, group):
    """Elements of the gradients are clipped after the average over ranks, not before it."""
    exact = model().double()
    loss_of(exact, *(tensor.double() for tensor in batch(0))).backward()
    trained, _ = ENGINES[engine].build(model(), device, world_size)

    loss_of(trained, *mine(0, rank, world_size, device)).backward()
    nn.utils.clip_grad_value_(trained.parameters(), BOUND)

    found = {name.removeprefix("module."): whole(value.grad) for name, value in trained.named_parameters()}
    clipped = 0
    for name, parameter in exact.named_parameters():
        expected = parameter.grad.clamp(-BOUND, BOUND)
        clipped += int((expected != parameter.grad).sum())
        near(check, f"the clipped gradient of '{name}'", found[name], expected, Near.GRADIENTS)
    check.that(clipped > 0, "no element of a gradient is above the bound, so nothing is clipped")


def in_16_bits(dtype, world_size):
    """Return a hook that sends gradients in ``dtype``. PyTorch's own for bfloat16 asks for NCCL or XCCL by name."""

    def hook(_state, bucket):
        quotients = bucket.buffer().to(dtype).div_(world_size)
        sent = torch.distributed.all_reduce(quotients, async_op=True).get_future()
        return sent.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return hook


@case("runtime.hook", requires=[*REPLICATING, COMM_DTYPE], axes={"dtype": ("bfloat16", "float16")}, world_size=(2, 3))
def test_hook(check, device, dtype, rank, world_size, group):
    """With a hook that sends gradients in 16 bits, they are float32, rounded to 16 bits, and equal on all ranks."""
    kind = getattr(torch, dtype)
    exact = model().double()
    loss_of(exact, *(tensor.double() for tensor in batch(0))).backward()
    trained, _ = ddp(model(), device, world_size)
    trained.register_comm_hook(None, in_16_bits(kind, world_size))

    loss_of(trained, *mine(0, rank, world_size, device)).backward()

    found = {name.removeprefix("module."): value.grad for name, value in trained.named_parameters()}
    for name, parameter in exact.named_parameters():
        check.equal(found[name].dtype, torch.float32, f"the dtype of the gradient of '{name}'")
        near(check, f"the gradient of '{name}'", found[name], parameter.grad, Near.GRADIENTS, kind)
        check.equal(found[name].to(kind).float(), found[name], f"the gradient of '{name}' rounded to {dtype}")
    check.same_on_all_ranks("gradients", torch.cat([found[name].flatten() for name in found]).cpu())


@case("runtime.uneven", requires=REPLICATING, world_size=(2, 3))
def test_uneven(check, device, rank, world_size, group):
    """In DDP's join() a rank without inputs adds zeros, and all ranks end with the weights of the longest one."""
    exact = model().double()
    alone = sgd(exact.parameters())
    # Rank r has r + 1 batches. The sums are divided by the number of ranks at the start.
    for step in range(world_size):
        alone.zero_grad()
        for other in range(step, world_size):
            rows = (tensor.double().chunk(world_size)[other] for tensor in batch(step))
            (loss_of(exact, *rows) / world_size).backward()
        alone.step()
    trained, stepping = ddp(model(), device, world_size)

    with trained.join(divide_by_initial_world_size=True):
        for step in range(rank + 1):
            stepping.zero_grad()
            loss_of(trained, *mine(step, rank, world_size, device)).backward()
            stepping.step()

    check_weights(check, trained, exact)


@case("runtime.hybrid", requires=[COMM, COMM_DTYPE.on("float32"), *FSDP_NEEDS], world_size=(2, 4))
def test_hybrid(check, device, rank, world_size, group):
    """Weights that are replicated over groups of ranks and sharded inside each group train as on one device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard

    exact, _ = reference()
    mesh = init_device_mesh(device.type, (2, world_size // 2), mesh_dim_names=("replicas", "parts"))
    trained = model().to(device)
    for layer in (trained.first, trained.second, trained):
        fully_shard(layer, mesh=mesh)
    stepping = sgd(trained.parameters())

    train(trained, stepping, rank, world_size, device)

    check.equal(trained.first.weight.placements, (Replicate(), Shard(0)), "the placements of a weight")
    rows = trained.first.weight.to_local().shape[0]
    most = math.ceil(19 / mesh.size(1))
    check.that(rows <= most, f"a rank keeps {rows} of 19 rows; at most {most} are its part")
    check_weights(check, trained, exact)

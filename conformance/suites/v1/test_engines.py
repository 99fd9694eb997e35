"""Cases of ZeRO 1, 2 and 3 by torch's engines: exact steps, several backward passes, gathered weights, shares."""

from __future__ import annotations

import math

import torch
from torch import nn

from conformance.accelerators.capabilities import AUTOCAST, COMM, COMM_DTYPE, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.runtime.engines import (
    DDP_NEEDS,
    ENGINES,
    FSDP_NEEDS,
    ddp,
    engines,
    fsdp,
    fsdp_kept,
    sharded,
    without_reduction,
    zero,
)
from conformance.suites.runtime.test_engines import check_weights, mine
from conformance.suites.runtime.training import STEPS, batch, loss_of, model, reference, weights, whole

#: Imports that take seconds on each rank.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.optim", "torch.distributed.checkpoint.state_dict")
NEEDS = (COMM, COMM_DTYPE.on("float32"))
SHARDED = {"fsdp": FSDP_NEEDS, "fsdp-kept": FSDP_NEEDS}


def by_name(trained):
    """Return the parameters by the names of the unwrapped model."""
    return {name.removeprefix("module."): value for name, value in trained.named_parameters()}


def check_gradients(check, trained, exact):
    """Check every gradient against the float64 model. All ranks have to call it."""
    found = by_name(trained)
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}'", whole(found[name].grad), parameter.grad, Near.GRADIENTS)


#: With this epsilon, which is larger than the gradients, a step is nearly proportional to its gradient: the rounding
#: of 16 bits is not scaled up where a gradient is small.
STEADY = {"lr": 0.2, "eps": 0.2, "weight_decay": 0.01}


def steady(parameters):
    return torch.optim.AdamW(parameters, **STEADY)


def built(level, dtype, device, world_size):
    """Return a model under ZeRO of that level that computes in a 16-bit dtype, and a context for its forward pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    kind = getattr(torch, dtype)
    if level == "1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        trained, _ = ddp(model(), device, world_size)
        optimizer = ZeroRedundancyOptimizer(trained.parameters(), torch.optim.AdamW, **STEADY)
        return trained, optimizer, torch.autocast(device.type, dtype=kind)
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, output_dtype=kind)
    trained = sharded(model(), device, world_size, mp_policy=policy, reshard_after_forward=level == "3")
    return trained, steady(trained.parameters()), torch.enable_grad()


@case("v1.parity", requires=[*NEEDS, COMM_DTYPE, DTYPE], axes={
    "level": {"1": (*DDP_NEEDS, AUTOCAST), "2": FSDP_NEEDS, "3": FSDP_NEEDS}, "dtype": ("bfloat16", "float16")},
    world_size=(2, 3))  # fmt: skip
def test_parity(check, device, level, dtype, rank, world_size, group):
    """In 16 bits, each ZeRO level moves the float32 weights as one process in float64 does."""
    exact, _ = reference(steady)
    trained, optimizer, context = built(level, dtype, device, world_size)

    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = mine(step, rank, world_size, device)
        with context:
            output = trained(inputs)
        nn.functional.mse_loss(output.float(), targets).backward()
        optimizer.step()

    start = dict(model().named_parameters())
    found = weights(trained)
    for name, value in exact.named_parameters():
        check.equal(found[name].dtype, torch.float32, f"the dtype of '{name}'")
        moved = value.detach() - start[name].detach().double()
        near(check, f"the way of '{name}'", found[name] - start[name].detach(), moved, Near.TRAJECTORY,
             getattr(torch, dtype))  # fmt: skip
    check.same_on_all_ranks("weights", torch.cat([tensor.flatten() for tensor in found.values()]))


@case("v1.micro_steps", requires=NEEDS, axes={
    "engine": engines("ddp", "zero", "fsdp", "fsdp-kept"), "count": ("2", "3", "6")}, world_size=2)  # fmt: skip
def test_micro_steps(check, device, engine, count, rank, world_size, group):
    """Weights change in the last of k micro-steps only, and then as by one step on the whole batch."""
    parts, steps = int(count), 2
    exact, _ = reference(ENGINES[engine].optimizer, steps=steps)
    trained, optimizer = ENGINES[engine].build(model(), device, world_size)

    for step in range(steps):
        before = weights(trained)
        optimizer.zero_grad()
        pieces = list(zip(*(tensor.chunk(parts) for tensor in mine(step, rank, world_size, device)), strict=True))
        for piece in pieces[:-1]:
            with without_reduction(trained):
                (loss_of(trained, *piece) / parts).backward()
        (loss_of(trained, *pieces[-1]) / parts).backward()
        for name, value in weights(trained).items():
            check.agree(value, before[name], f"'{name}' before the optimizer's step {step}")
        optimizer.step()

    check_weights(check, trained, exact)


@case("v1.backwards", requires=NEEDS, axes={
    "engine": engines("ddp", "fsdp", "fsdp-kept"),
    "way": ("two-passes", "two-losses", "by-gradient", "scaled-sum", "functional")}, world_size=2)  # fmt: skip
def test_backwards(check, device, engine, way, rank, world_size, group):
    """Gradients of two losses add up, however the user calls the backward pass."""
    exact = model().double()
    inputs, targets = (tensor.double() for tensor in batch(0))
    output = exact(inputs)
    (nn.functional.mse_loss(output, targets) + output.square().mean()).backward()
    trained, _ = ENGINES[engine].build(model(), device, world_size)
    inputs, targets = mine(0, rank, world_size, device)

    def losses():
        output = trained(inputs)
        return output, nn.functional.mse_loss(output, targets), output.square().mean()

    if way == "two-passes":
        losses()[1].backward()
        losses()[2].backward()
    elif way == "two-losses":
        torch.autograd.backward(losses()[1:])
    elif way == "by-gradient":
        output, _, _ = losses()
        count = output.numel()
        output.backward((2 * (output - targets) + 2 * output).detach() / count)
    elif way == "scaled-sum":
        _, first, second = losses()
        (first * 4 + second * 4).backward(torch.tensor(0.25, device=device))
    else:
        _, first, second = losses()
        torch.autograd.backward([first, second], [torch.ones_like(first), torch.ones_like(second)])

    check_gradients(check, trained, exact)


@case("v1.gathered", requires=[*NEEDS, *FSDP_NEEDS], axes={
    "where": ("outside", "outside-async", "inside", "inside-layer")}, world_size=(2, 3))  # fmt: skip
def test_gathered(check, device, where, rank, world_size, group):
    """Sharded weights are whole where they are gathered, and shards again behind it."""
    start = model()
    expected = {name: value.detach().clone() for name, value in start.named_parameters()}
    seen = {}

    def look(module, *_):
        for name, value in (("weight", module.weight), ("bias", module.bias)):
            seen[name] = value.detach().clone().cpu()

    if where == "inside":
        start.first.register_forward_hook(look)  # before the engine's own hook, which shards the weights again
    trained, _ = fsdp(start, device, world_size)
    if where == "inside-layer":
        plain = trained.first.forward
        trained.first.forward = lambda x: (look(trained.first), plain(x))[1]
    if where.startswith("inside"):
        with torch.no_grad():
            trained(mine(0, rank, world_size, device)[0])
    else:
        handle = trained.first.unshard(async_op=where == "outside-async")
        if handle is not None:
            handle.wait()
        look(trained.first)
        trained.first.reshard()

    for name, value in seen.items():
        check.equal(value, expected[f"first.{name}"], f"the gathered {name}")
    check.equal(sorted(seen), ["bias", "weight"], "gathered parameters")
    rows = trained.first.weight.to_local()
    check_rows(check, rows, expected["first.weight"], rank, world_size)


def check_rows(check, local, expected, rank, world_size):
    """Check that a tensor has the rank's rows of the whole one."""
    parts = expected.chunk(world_size)
    wanted = parts[rank] if rank < len(parts) else expected[:0]
    check.equal(local.detach().cpu(), wanted, f"the rows of rank {rank}")


@case("v1.gathered.written", requires=[*NEEDS, *FSDP_NEEDS], axes={"source": ("all-ranks", "first-rank")},
      world_size=(2, 3))  # fmt: skip
def test_written(check, device, source, rank, world_size, group):
    """Whole weights that are written into a sharded model reach every shard, and the next forward pass uses them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    other = model(seed=3)
    trained, _ = fsdp(model(), device, world_size)
    state = {name: value.detach().clone() for name, value in other.named_parameters()}
    if source == "first-rank" and rank:
        state = {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=source == "first-rank")
    set_model_state_dict(trained, state, options=options)
    with torch.no_grad():
        output = trained(mine(0, rank, world_size, device)[0])

    check_rows(check, trained.first.weight.to_local(), other.first.weight.detach(), rank, world_size)
    exact = other.double()(batch(0)[0].double().chunk(world_size)[rank]).detach()
    near(check, "the output with the new weights", output, exact, Near.FORWARD)


@case("v1.shares", requires=NEEDS, axes={
    "level": {"1": DDP_NEEDS, "2": FSDP_NEEDS, "3": FSDP_NEEDS}}, world_size=(2, 4))  # fmt: skip
def test_shares(check, device, level, rank, world_size, group):
    """Each level shares what it promises: states; gradients as well; and weights between their uses as well."""
    build = {"1": zero, "2": fsdp_kept, "3": fsdp}[level]
    trained, optimizer = build(model(), device, world_size)
    output = trained(mine(0, rank, world_size, device)[0])
    layer = trained.module.first if level == "1" else trained.first
    weight = layer.weight
    between = (weight.to_local() if hasattr(weight, "to_local") else weight).numel()
    output.square().mean().backward()
    optimizer.step()

    rows, columns = 19, 11
    shard = [len(part) for part in torch.arange(rows).chunk(world_size)]
    own = (shard[rank] if rank < len(shard) else 0) * columns
    check.equal(between, own if level == "3" else rows * columns, "elements of a weight after the forward pass")
    gradient = layer.weight.grad
    held = (gradient.to_local() if hasattr(gradient, "to_local") else gradient).numel()
    check.equal(held, rows * columns if level == "1" else own, "elements of its gradient")
    if level != "1":
        state = optimizer.state[layer.weight]
        first = next(value for value in state.values() if torch.is_tensor(value) and value.dim())
        check.equal(first.to_local().numel(), own, "elements of its state")
    total = torch.tensor([float(held)], device=device)
    torch.distributed.all_reduce(total)
    check.equal(total.item(), float(rows * columns * (world_size if level == "1" else 1)), "elements on all ranks")


@case("v1.overflow", requires=NEEDS, axes={
    "engine": engines("ddp", "fsdp"), "bad": ("inf-first", "nan-first", "nan-last", "inf-micro")},
    world_size=2)  # fmt: skip
def test_overflow(check, device, engine, bad, rank, world_size, group):
    """An overflow on any rank, also in a micro-step without communication, makes all ranks skip that step only."""
    value, where = bad.split("-")
    trained, optimizer = ENGINES[engine].build(model(), device, world_size)
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=100)
    hit = rank == (world_size - 1 if where == "last" else 0)
    scales, moved = [], []

    for step in range(3):
        before = weights(trained)
        optimizer.zero_grad()
        pieces = list(zip(*(tensor.chunk(2) for tensor in mine(step, rank, world_size, device)), strict=True))
        factors = [1.0, 1.0]
        if step == 1 and hit:
            factors[0 if where == "micro" else 1] = float(value)
        with without_reduction(trained):
            scaler.scale(loss_of(trained, *pieces[0]) * factors[0]).backward()
        scaler.scale(loss_of(trained, *pieces[1]) * factors[1]).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(any(not torch.equal(before[name], now) for name, now in weights(trained).items()))

    check.equal(scales, [256.0, 128.0, 128.0], "the loss scale after each step")
    check.equal(moved, [True, False, True], "whether each step changed the weights")
    total = torch.cat([now.flatten() for now in weights(trained).values()])
    check.that(math.isfinite(float(total.abs().max())), "a weight is not finite")
    check.same_on_all_ranks("weights", total)


@case("v1.unused", requires=[*NEEDS, *FSDP_NEEDS], axes={"engine": tuple(SHARDED)}, world_size=2)
def test_unused(check, device, engine, rank, world_size, group):
    """A sharded layer that no rank uses has no gradient and keeps its bits, and the other layers train."""
    exact = model().double()
    inputs, targets = (tensor.double() for tensor in batch(0))
    nn.functional.mse_loss(exact.norm(exact.first(inputs))[:, :5], targets).backward()
    trained, optimizer = ENGINES[engine].build(model(), device, world_size)
    start = weights(trained)
    inputs, targets = mine(0, rank, world_size, device)

    class Short(nn.Module):
        """Forward pass without the second layer."""

        def forward(self, x):
            return trained.norm(trained.first(x))[:, :5]

    trained.forward = Short().forward
    nn.functional.mse_loss(trained(inputs), targets).backward()
    found = by_name(trained)
    for name in ("first.weight", "first.bias", "norm.weight", "norm.bias"):
        near(check, f"the gradient of '{name}'", whole(found[name].grad), dict(exact.named_parameters())[name].grad,
             Near.GRADIENTS)  # fmt: skip
    optimizer.step()

    for name in ("second.weight", "second.bias"):
        gradient = found[name].grad
        check.that(gradient is None or not bool(whole(gradient).any()), f"the unused '{name}' has a gradient")
    if engine == "fsdp-kept":  # the other engine's optimizer lets weights decay
        for name in ("second.weight", "second.bias"):
            check.agree(weights(trained)[name], start[name], f"the unused '{name}'")


@case("v1.outside", requires=[*NEEDS, *DDP_NEEDS], axes={"what": ("loss", "output")}, world_size=2)
def test_outside(check, device, what, rank, world_size, group):
    """Gradients by autograd.grad outside the engine leave the engine's own gradients alone."""
    exact = model().double()
    inputs, targets = (tensor.double() for tensor in batch(0))
    loss_of(exact, inputs, targets).backward()
    trained, _ = ddp(model(), device, world_size)
    given, wanted = mine(0, rank, world_size, device)
    given.requires_grad_()

    output = trained.module(given)
    value = nn.functional.mse_loss(output, wanted) if what == "loss" else output.sum()
    (by_hand,) = torch.autograd.grad(value, given)
    loss_of(trained, given.detach(), wanted).backward()

    rows = inputs.chunk(world_size)[rank].requires_grad_()
    made = exact(rows)
    of_rows = nn.functional.mse_loss(made, targets.chunk(world_size)[rank]) if what == "loss" else made.sum()
    near(check, "the gradient of the inputs", by_hand, torch.autograd.grad(of_rows, rows)[0], Near.GRADIENTS)
    check_gradients(check, trained, exact)

"""Data-parallel cases: DDP, ZeroRedundancyOptimizer and FSDP2 train as one device does."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, Cell
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .engines import DDP_NEEDS, ENGINES, FSDP_NEEDS, ddp, engines, sharded, without_reduction
from .training import STEPS, batch, loss_of, model, part, reference, sgd, weights, whole

#: Every optimizer and FSDP2 import them, which takes seconds.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.optim")
NEEDS = (COMM, COMM_DTYPE.on("float32"))
#: Requirements of cases that run DDP only, and of those that run FSDP2 only.
REPLICATING = (*NEEDS, *DDP_NEEDS)
SHARDING = (*NEEDS, *FSDP_NEEDS)

#: Largest gradient norm. It is below all norms of the model, so every step is clipped.
CLIP = 0.1


def mine(step, rank, world_size, device):
    """Return the rank's inputs and targets of one step, on the device."""
    return [part(tensor, rank, world_size).to(device) for tensor in batch(step)]


def train(trained, stepping, rank, world_size, device):
    """Train for all steps, each rank with its part of each batch."""
    for step in range(STEPS):
        stepping.zero_grad()
        loss_of(trained, *mine(step, rank, world_size, device)).backward()
        stepping.step()


def check_weights(check, trained, exact, kind=Near.TRAJECTORY, dtype=None):
    """Check that weights agree with the float64 reference, and are bitwise equal on all ranks."""
    found = weights(trained)
    for name, value in exact.named_parameters():
        near(check, f"'{name}'", found[name], value, kind, dtype)
    check.same_on_all_ranks("weights", torch.cat([tensor.flatten() for tensor in found.values()]))


@case("runtime.parity", requires=NEEDS, axes={"engine": engines()}, world_size=(2, 3))
def test_parity(check, device, engine, rank, world_size, group):
    """After several steps, the weights agree with those of one process that trained on the whole batches."""
    build, optimizer = ENGINES[engine].build, ENGINES[engine].optimizer
    exact, _ = reference(optimizer)
    trained, stepping = build(model(), device, world_size)

    train(trained, stepping, rank, world_size, device)

    check_weights(check, trained, exact)
    start = dict(model().named_parameters())
    moved = max(float((value - start[name]).abs().max()) for name, value in weights(trained).items())
    check.that(moved > 0.001, f"training moved the weights by at most {moved:.3g}; more than 0.001 is needed")


@case("runtime.sharding", requires=NEEDS, axes={"engine": engines("zero", "fsdp")}, world_size=(2, 3))
def test_sharding(check, device, engine, rank, world_size, group):
    """Each rank keeps a part of the optimizer's state, and the parts add up to the whole state."""
    trained, stepping = ENGINES[engine].build(model(), device, world_size)
    loss_of(trained, *mine(0, rank, world_size, device)).backward()
    stepping.step()

    inner = stepping.optim if engine == "zero" else stepping
    states = [state["exp_avg"] for state in inner.state.values()]
    own = sum((state.to_local() if hasattr(state, "to_local") else state).numel() for state in states)
    total = torch.tensor([float(own)], device=device)
    torch.distributed.all_reduce(total)

    elements = sum(parameter.numel() for parameter in model().parameters())
    message = f"a rank keeps {own} of {elements} elements of the state; it should keep some and not all"
    check.that(0 < own < elements, message)
    check.equal(int(total.item()), elements, "number of elements on all ranks together")


@case("runtime.accumulation", requires=NEEDS, axes={"engine": engines("ddp", "fsdp")}, world_size=2)
def test_accumulation(check, device, engine, rank, world_size, group):
    """Two half batches, the first one without communication, give the gradient of the whole batch."""
    exact = model().double()
    inputs, targets = (tensor.double() for tensor in batch(0))
    loss_of(exact, inputs, targets).backward()
    trained, _ = ENGINES[engine].build(model(), device, world_size)
    halves = list(zip(*(tensor.chunk(2) for tensor in mine(0, rank, world_size, device)), strict=True))

    with without_reduction(trained):
        (loss_of(trained, *halves[0]) / 2).backward()
    (loss_of(trained, *halves[1]) / 2).backward()

    found = dict(trained.named_parameters())
    for name, parameter in exact.named_parameters():
        gradient = whole(found[f"module.{name}" if engine == "ddp" else name].grad)  # DDP wraps the model as 'module'
        near(check, f"the gradient of '{name}'", gradient, parameter.grad, Near.GRADIENTS)


@case("runtime.clipping", requires=NEEDS, axes={"engine": engines("ddp", "fsdp-kept")}, world_size=(2, 3))
def test_clipping(check, device, engine, rank, world_size, group):
    """Gradient clipping uses the norm over all shards."""
    build = ENGINES[engine].build
    exact, norms = reference(sgd, steps=3, clip=CLIP)
    trained, stepping = build(model(), device, world_size)

    for step in range(3):
        stepping.zero_grad()
        loss_of(trained, *mine(step, rank, world_size, device)).backward()
        norm = whole(nn.utils.clip_grad_norm_(trained.parameters(), CLIP))
        check.that(float(norm) > CLIP, f"the norm {float(norm):.3g} is not above {CLIP}, so nothing is clipped")
        near(check, f"the norm of step {step}", norm, norms[step], Near.GRADIENTS)
        stepping.step()

    check_weights(check, trained, exact)


@case("runtime.mixed", requires=[*SHARDING, DTYPE, COMM_DTYPE], axes={"dtype": ("bfloat16", "float16")}, world_size=2)
def test_mixed(check, device, dtype, rank, world_size, group):
    """With 16-bit computation and float32 reduction, weights and gradients stay float32 and agree with float64."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    kind = getattr(torch, dtype)
    exact = model().double()
    loss_of(exact, *(tensor.double() for tensor in batch(0))).backward()
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, output_dtype=kind)
    trained = sharded(model(), device, world_size, mp_policy=policy)
    inputs, targets = mine(0, rank, world_size, device)

    output = trained(inputs)
    nn.functional.mse_loss(output.float(), targets).backward()

    check.equal(output.dtype, kind, "the dtype of the output")
    found = dict(trained.named_parameters())
    for name, parameter in exact.named_parameters():
        check.equal((found[name].dtype, found[name].grad.dtype), (torch.float32,) * 2, f"dtypes of '{name}'")
        near(check, f"the gradient of '{name}'", whole(found[name].grad), parameter.grad, Near.GRADIENTS, kind)


@case("runtime.overflow", requires=NEEDS, axes={"engine": engines("ddp", "fsdp")}, world_size=(2, 3))
def test_overflow(check, device, engine, rank, world_size, group):
    """When gradients overflow on one rank, all ranks skip that step, halve the loss scale and stay equal."""
    trained, stepping = ENGINES[engine].build(model(), device, world_size)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=2)
    scales, changed = [], []

    for step in range(6):
        before = weights(trained)
        stepping.zero_grad()
        loss = loss_of(trained, *mine(step, rank, world_size, device))
        scaler.scale(loss * (float("inf") if step == 3 and rank == world_size - 1 else 1.0)).backward()
        scaler.step(stepping)
        scaler.update()
        scales.append(scaler.get_scale())
        changed.append(any(not torch.equal(before[name], value) for name, value in weights(trained).items()))

    # Two good steps in a row double the scale (growth_interval=2). Step 3 overflows after one: it halves the scale, and
    # the count begins anew.
    check.equal(scales, [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0], "the loss scale after each step")
    check.equal(changed, [True, True, True, False, True, True], "whether each step changed the weights")
    check.same_on_all_ranks("weights", torch.cat([value.flatten() for value in weights(trained).values()]))


@case("runtime.offload", requires=SHARDING, world_size=2)
def test_offload(check, device, rank, world_size, group):
    """With CPU offload, weights, gradients and optimizer state are on the host and training results agree."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    exact, _ = reference(sgd)
    trained = sharded(model(), device, world_size, offload_policy=CPUOffloadPolicy(pin_memory=False))
    stepping = sgd(trained.parameters())

    train(trained, stepping, rank, world_size, device)

    for name, parameter in trained.named_parameters():
        types = {parameter.device.type, parameter.grad.device.type}
        types |= {state["momentum_buffer"].device.type for state in stepping.state.values()}
        check.equal(types, {"cpu"}, f"device types of '{name}', its gradient and the optimizer's state")
    for name, value in exact.named_parameters():
        own = part_of(dict(trained.named_parameters())[name], value, rank, world_size)
        near(check, f"'{name}'", *own, Near.TRAJECTORY, largest=float(value.detach().abs().max()))


def part_of(parameter, exact, rank, world_size):
    """Return a rank's shard and the same rows of the reference. A gather would need a backend for host tensors."""
    rows = exact.detach().chunk(world_size)
    local = parameter.to_local()
    return local, rows[rank] if rank < len(rows) else exact.detach()[:0]


@case("runtime.sparse", requires=[*REPLICATING, Cell("operators.to_sparse", "float32", "inference")], world_size=2)
def test_sparse(check, device, rank, world_size, group):
    """Sparse gradients of an embedding are averaged over ranks like dense ones."""
    from torch.nn.parallel import DistributedDataParallel

    start = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    words, gradients = torch.tensor([[1, 5, 5], [5, 8, 0]]), {}

    for sparse in (True, False):
        layer = nn.Embedding(9, 4, sparse=sparse)
        layer.weight.data.copy_(start)
        wrapped = DistributedDataParallel(layer.to(device))
        wrapped(words[rank].to(device)).square().sum().backward()
        gradient = layer.weight.grad
        check.equal(gradient.is_sparse, sparse, "whether the gradient is sparse")
        gradients[sparse] = (gradient.to_dense() if sparse else gradient).cpu()

    exact = torch.zeros(9, 4, dtype=torch.float64)
    for word in words.flatten():
        exact[word] += 2 * start[word].double() / world_size
    near(check, "the sparse gradient", gradients[True], exact, Near.GRADIENTS)
    near(check, "the dense gradient", gradients[False], exact, Near.GRADIENTS)


@case("runtime.first_rank", requires=REPLICATING, world_size=(2, 3))
def test_first_rank(check, device, rank, world_size, group):
    """Ranks that start with different weights all get the weights of the first rank."""
    trained, _ = ddp(model(seed=rank), device, world_size)

    for name, value in model(seed=0).named_parameters():
        check.equal(weights(trained)[name], value.detach(), f"'{name}'")


@case("runtime.unused", requires=REPLICATING, world_size=2)
def test_unused(check, device, rank, group):
    """A layer used by only one rank gets that rank's gradient, divided by the number of ranks."""
    from torch.nn.parallel import DistributedDataParallel

    layers = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).to(device)

    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers[rank](x)

    wrapped = DistributedDataParallel(Either(), find_unused_parameters=True)
    wrapped(torch.ones(1, 3, device=device)).sum().backward()

    for number, layer in enumerate(layers):
        check.equal(layer.weight.grad.cpu(), torch.full((2, 3), 0.5), f"the gradient of layer {number}")

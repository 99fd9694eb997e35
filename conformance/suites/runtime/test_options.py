"""Options of DDP: its own communication hooks, buckets, views and buffers, and normalization over all ranks."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM_DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .test_engines import NEEDS, REPLICATING, check_weights, mine, train
from .training import STEPS, batch, loss_of, model, part, reference, sgd

#: Every optimizer imports the first, and the hooks stand in the second.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.optim", "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")

#: Options of DDP that change how gradients travel, and not what they are.
OPTIONS = {
    "one-bucket-each": {"bucket_cap_mb": 0.0001},
    "one-bucket": {"bucket_cap_mb": 100},
    "views": {"gradient_as_bucket_view": True},
    "views-in-many": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
    "static": {"static_graph": True},
    "static-views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "no-buffers": {"broadcast_buffers": False},
}


def replicated(built, device, **options):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(built.to(device), **options)


@case("runtime.buckets", requires=REPLICATING, axes={"options": tuple(OPTIONS)}, world_size=2)
def test_buckets(check, device, options, rank, world_size, group):
    """Buckets of any size, views of them and a static graph change nothing in the weights after several steps."""
    exact, _ = reference()
    trained = replicated(model(), device, **OPTIONS[options])
    stepping = sgd(trained.parameters())

    train(trained, stepping, rank, world_size, device)

    check_weights(check, trained, exact)


def own_hooks():
    """Return torch's communication hooks that run on any device, their states, and the dtype that they send in."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def low_rank(**options):
        return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)

    return {
        "all-reduce": (default_hooks.allreduce_hook, lambda: None, torch.float32),
        "float16": (default_hooks.fp16_compress_hook, lambda: None, torch.float16),
        "wrapped-float16": (
            default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), lambda: None, torch.float16
        ),
        "before-powersgd": (
            powerSGD_hook.powerSGD_hook, lambda: low_rank(matrix_approximation_rank=1), torch.float32
        ),
    }  # fmt: skip


@case("runtime.hook.own", requires=REPLICATING, axes={"hook": {
    "all-reduce": (), "float16": (COMM_DTYPE.on("float16"),), "wrapped-float16": (COMM_DTYPE.on("float16"),),
    "before-powersgd": ()}}, world_size=(2, 3))  # fmt: skip
def test_own_hook(check, device, hook, rank, world_size, group):
    """The communication hooks of torch average gradients, rounded to the dtype in which they are sent."""
    call, state, kind = own_hooks()[hook]
    exact = model().double()
    loss_of(exact, *(tensor.double() for tensor in batch(0))).backward()
    trained = replicated(model(), device)
    trained.register_comm_hook(state(), call)

    loss_of(trained, *mine(0, rank, world_size, device)).backward()

    for name, parameter in exact.named_parameters():
        found = dict(trained.module.named_parameters())[name].grad
        check.equal(found.dtype, torch.float32, f"the dtype of the gradient of '{name}'")
        near(check, f"the gradient of '{name}'", found, parameter.grad, Near.GRADIENTS, kind)
        check.same_on_all_ranks(name, found)


class OneRow(nn.Module):
    """A product whose gradient has rank one on each rank."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weight = nn.Parameter(torch.randn(24, 20, generator=generator))

    def forward(self, x):
        return x @ self.weight


def rows(step, rank):
    """Return the input and the direction of the gradient of a rank in a step, one row each."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(1, 24, generator=generator), torch.randn(1, 20, generator=generator)


@case("runtime.hook.low_rank", requires=REPLICATING, axes={"feedback": ("yes", "no")}, world_size=2)
def test_low_rank(check, device, feedback, rank, world_size, group):
    """PowerSGD with as many columns as the gradient's rank is exact, and its approximations lose nothing for good."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    trained = replicated(OneRow(), device)
    # Two ranks with one row each: the mean gradient has rank two.
    state = PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5,
        use_error_feedback=feedback == "yes", warm_start=True,
    )  # fmt: skip
    trained.register_comm_hook(state, powerSGD_hook)

    # Before step 2 the gradients are not compressed. Later their range is found by one multiplication with the
    # last step's columns: a matrix of rank two is recovered whatever these columns are.
    for step in range(5):
        trained.zero_grad()
        x, direction = (tensor.to(device) for tensor in rows(step, rank))
        (trained(x) * direction).sum().backward()
        exact = sum(
            torch.outer(x[0].double(), direction[0].double())
            for x, direction in (rows(step, other) for other in range(world_size))
        )
        near(check, f"the gradient of step {step}", trained.module.weight.grad, exact / world_size, Near.GRADIENTS,
             largest=float(exact.norm()))  # fmt: skip
        check.same_on_all_ranks(f"gradient {step}", trained.module.weight.grad)
    check.that(state.total_numel_after_compression < state.total_numel_before_compression, "nothing is compressed")


class Counting(nn.Module):
    """A layer with a buffer that each forward pass changes by what it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total += x.detach().sum(0)
        return self.layer(x)


@case("runtime.buffers", requires=REPLICATING, axes={"broadcast": ("yes", "no")}, world_size=(2, 3))
def test_buffers(check, device, broadcast, rank, world_size, group):
    """Buffers are those of the first rank before each forward pass, or each rank keeps its own."""
    trained = replicated(Counting(), device, broadcast_buffers=broadcast == "yes")
    expected = torch.zeros(3)

    for step in range(3):
        trained(torch.full((2, 3), 10.0 * step + rank, device=device)).sum().backward()
        # What the first rank added in the steps before, or the rank itself, and what the rank adds now.
        source = 0 if broadcast == "yes" else rank
        before = sum(2 * (10.0 * earlier + source) for earlier in range(step))
        expected = torch.full((3,), before + 2 * (10.0 * step + rank))
        check.equal(trained.module.total.cpu(), expected, f"the buffer after step {step}")


class SharedNorm(nn.Module):
    """Batch normalization over the rows of all ranks: sums travel forward, and their gradients back."""

    def __init__(self, columns):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(columns)), nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        from torch.distributed.nn.functional import all_reduce

        count = torch.full((1,), float(len(x)), device=x.device)
        sums = all_reduce(torch.cat([x.sum(0), count]))
        mean = sums[:-1] / sums[-1]
        spread = all_reduce((x - mean).square().sum(0)) / sums[-1]
        return (x - mean) * torch.rsqrt(spread + 1e-5) * self.weight + self.bias


@case("runtime.batch_norm", requires=NEEDS, axes={"rows": ("even", "uneven")}, world_size=(2, 3))
def test_batch_norm(check, device, rows, rank, world_size, group):
    """Rows are normalized by mean and variance over all ranks, with the gradients of one process."""
    generator = torch.Generator().manual_seed(44)
    x, weight = torch.randn(12, 5, generator=generator) * 3 + 1, torch.randn(12, 5, generator=generator)
    ends = {"even": [12 * n // world_size for n in range(world_size + 1)], "uneven": [*[0, 1, 7][:world_size], 12]}
    own = slice(ends[rows][rank], ends[rows][rank + 1])
    exact, alone = x.double().requires_grad_(), nn.BatchNorm1d(5).double()
    expected = alone(exact)
    (expected * weight.double()).sum().backward()
    mine = x[own].to(device).requires_grad_()
    layer = SharedNorm(5).to(device)

    output = layer(mine)
    (output * weight[own].to(device)).sum().backward()
    for parameter in layer.parameters():
        torch.distributed.all_reduce(parameter.grad)

    near(check, "the output", output, expected.detach()[own], Near.FORWARD)
    near(check, "the gradient of the rows", mine.grad, exact.grad[own], Near.GRADIENTS,
         largest=float(exact.grad.abs().max()))  # fmt: skip
    for name, found in layer.named_parameters():
        near(check, f"the gradient of the {name}", found.grad, dict(alone.named_parameters())[name].grad,
             Near.GRADIENTS)  # fmt: skip


@case("runtime.uneven.refused", requires=REPLICATING, world_size=2)
def test_uneven_refused(check, device, rank, world_size, group):
    """If asked to, join() raises an error on all ranks as soon as one has no inputs."""
    trained = replicated(model(), device)
    done, error = 0, None

    try:
        with trained.join(throw_on_early_termination=True):
            for step in range(rank + 1):
                loss_of(trained, *mine(step, rank, world_size, device)).backward()
                done += 1
    except RuntimeError as caught:
        error = str(caught)

    check.that(error, "no error although the ranks have unequal numbers of inputs")
    check.equal(done, 1, "steps before the error")
    exact = model().double()
    loss_of(exact, *(tensor.double() for tensor in batch(0))).backward()
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}' before the error", dict(trained.module.named_parameters())[name].grad,
             parameter.grad, Near.GRADIENTS)  # fmt: skip


@case("runtime.averaged", requires=NEEDS, axes={"period": ("1", "2", "4")}, world_size=(2, 3))
def test_averaged(check, device, period, rank, world_size, group):
    """Ranks that train alone and average their weights every k steps agree with the same done in one process."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    models = [model().double() for _ in range(world_size)]
    optimizers = [sgd(alone.parameters()) for alone in models]
    for step in range(STEPS):
        for other, (alone, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(alone, *(part(tensor.double(), other, world_size) for tensor in batch(step))).backward()
            optimizer.step()
        if step % int(period) == 0:  # also in the first step
            with torch.no_grad():
                for values in zip(*(alone.parameters() for alone in models), strict=True):
                    mean = torch.stack([value.detach() for value in values]).mean(0)
                    for value in values:
                        value.copy_(mean)
    own = model().to(device)
    stepping = sgd(own.parameters())
    averager = PeriodicModelAverager(period=int(period), warmup_steps=0)

    for step in range(STEPS):
        stepping.zero_grad()
        loss_of(own, *mine(step, rank, world_size, device)).backward()
        stepping.step()
        averager.average_parameters(own.parameters())

    for name, value in models[rank].named_parameters():
        near(check, f"'{name}'", dict(own.named_parameters())[name], value, Near.TRAJECTORY)

"""Hook cases: gradients that hooks see and change, steps inside the backward pass, and streams of hooks."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, STREAM, STREAM_ORDER
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.runtime.engines import ENGINES, engines
from conformance.suites.runtime.test_engines import check_weights, mine
from conformance.suites.runtime.training import batch, loss_of, model, reference, whole

#: Imports that take seconds on each rank.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.optim")
NEEDS = (COMM, COMM_DTYPE.on("float32"))
FACTOR = -1.5


def hooked(trained, kind, seen):
    """Register a hook of that kind, which multiplies what it can change by FACTOR."""
    layer = trained.first

    def keep(name, value):
        seen.append((name, value.detach().clone()))

    def change(output):
        output.register_hook(lambda gradient: gradient * FACTOR)

    def multiply(value):
        value.grad.mul_(FACTOR)

    if kind == "tensor":
        layer.register_forward_hook(lambda module, args, output: change(output))
    elif kind == "parameter":
        layer.weight.register_hook(lambda gradient: gradient * FACTOR)
    elif kind == "accumulated":
        layer.weight.register_post_accumulate_grad_hook(multiply)
    elif kind == "backward":
        layer.register_full_backward_hook(lambda module, given, taken: keep("of the output", taken[0]))
    elif kind == "backward-pre":
        layer.register_full_backward_pre_hook(lambda module, taken: (taken[0] * FACTOR,))
    else:
        trained.second.register_forward_pre_hook(lambda module, args: (args[0] * FACTOR,))


KINDS = ("tensor", "parameter", "accumulated", "backward", "backward-pre", "forward-pre")


def exact_hooked(kind):
    """Return the float64 model after a backward pass in which the same factor is applied by hand, and seen values."""
    exact = model().double()
    inputs, targets = (tensor.double() for tensor in batch(0))
    first = exact.first(inputs)
    middle = first
    if kind in ("tensor", "backward-pre"):
        # Forward the same values; backward times FACTOR.
        middle = first * FACTOR + (first * (1 - FACTOR)).detach()
    hidden = nn.functional.gelu(exact.norm(middle))
    output = exact.second(hidden * FACTOR if kind == "forward-pre" else hidden)
    first.retain_grad()
    nn.functional.mse_loss(output, targets).backward()
    if kind in ("parameter", "accumulated"):
        exact.first.weight.grad *= FACTOR
    return exact, first.grad


@case("v1.hooks", requires=[], axes={"kind": KINDS})
def test_hooks(check, device, kind):
    """A hook sees the gradient of its place, and what it returns or writes replaces it for everything behind."""
    exact, gradient = exact_hooked(kind)
    trained, seen = model().to(device), []
    hooked(trained, kind, seen)

    # A module's hook of the backward pass needs an input with a gradient.
    inputs, targets = (tensor.to(device) for tensor in batch(0))
    loss_of(trained, inputs.requires_grad_(), targets).backward()

    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}'", dict(trained.named_parameters())[name].grad, parameter.grad,
             Near.GRADIENTS)  # fmt: skip
    if kind == "backward":
        check.equal(len(seen), 1, "calls of the hook")
        near(check, "the gradient that the hook saw", seen[0][1], gradient, Near.GRADIENTS)


@case("v1.hooks.sharded", requires=NEEDS, axes={
    "engine": engines("ddp", "fsdp", "fsdp-kept"), "kind": ("tensor", "backward-pre", "forward-pre")},
    world_size=2)  # fmt: skip
def test_sharded(check, device, engine, kind, rank, world_size, group):
    """Hooks on layers change values and gradients under each engine as on one device."""
    exact, _ = exact_hooked(kind)
    start = model()
    hooked(start, kind, [])
    trained, _ = ENGINES[engine].build(start, device, world_size)

    inputs, targets = mine(0, rank, world_size, device)
    loss_of(trained, inputs.requires_grad_(), targets).backward()

    found = {name.removeprefix("module."): value for name, value in trained.named_parameters()}
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}'", whole(found[name].grad), parameter.grad, Near.GRADIENTS)


@case("v1.hooks.step", requires=NEEDS, axes={"engine": engines("fsdp", "fsdp-kept")}, world_size=2)
def test_step(check, device, engine, rank, world_size, group):
    """Steps of each parameter inside the backward pass train as one step behind it, and leave no gradient."""
    steps = 3
    exact, _ = reference(ENGINES[engine].optimizer, steps=steps)
    trained, _ = ENGINES[engine].build(model(), device, world_size)
    optimizers = {value: ENGINES[engine].optimizer([value]) for value in trained.parameters()}

    def step(value):
        optimizers[value].step()
        optimizers[value].zero_grad()

    for value in trained.parameters():
        value.register_post_accumulate_grad_hook(step)
    for number in range(steps):
        loss_of(trained, *mine(number, rank, world_size, device)).backward()

    kept = [name for name, value in trained.named_parameters() if value.grad is not None]
    check.equal(kept, [], "parameters with a gradient after the backward pass")
    check_weights(check, trained, exact)


@case("v1.hooks.stream", requires=[STREAM, STREAM_ORDER], axes={"kind": ("tensor", "accumulated", "function")})
def test_stream(accelerator, check, device, kind):
    """Hooks of a forward pass on a side stream see finished gradients there, and work after it sees theirs."""
    size = 257
    side = accelerator.Stream()
    source = torch.linspace(-1, 1, size * size).view(size, size)
    weight = torch.eye(size, device=device).requires_grad_()
    x, copied = source.to(device), torch.zeros(size, size, device=device)
    side.wait_stream(accelerator.current_stream())

    class Copying(torch.autograd.Function):
        """Identity that copies its gradient on the way back."""

        @staticmethod
        def forward(context, value):
            return value.view_as(value)

        @staticmethod
        def backward(context, gradient):
            copied.copy_(gradient)
            return gradient

    def keep(value):
        copied.copy_(value.grad)

    with accelerator.stream(side):
        hidden = Copying.apply(weight * 1) if kind == "function" else weight * 1
        if kind == "tensor":
            hidden.register_hook(copied.copy_)
        elif kind == "accumulated":
            weight.register_post_accumulate_grad_hook(keep)
        loss = (hidden * x).sum() * 3
        loss.backward()
    accelerator.current_stream().wait_stream(side)

    check.equal(weight.grad.cpu(), source * 3, "the gradient")
    check.equal(copied.cpu(), source * 3, "the gradient that the hook copied")


@case("v1.hooks.removed", requires=[], axes={"kind": ("tensor", "accumulated")})
def test_removed(check, device, kind):
    """A removed hook is not called again, and others of the same parameter go on."""
    weight = torch.ones(9, device=device, requires_grad=True)
    seen = []
    if kind == "tensor":
        handles = [weight.register_hook(lambda g, n=n: seen.append((n, g.sum().item()))) for n in "ab"]
    else:
        handles = [
            weight.register_post_accumulate_grad_hook(lambda v, n=n: seen.append((n, v.grad.sum().item())))
            for n in "ab"
        ]

    (weight * 2).sum().backward()
    handles[0].remove()
    weight.grad = None
    (weight * 3).sum().backward()

    check.equal(seen, [("a", 18.0), ("b", 18.0), ("b", 27.0)], "hooks and the gradients that they saw")

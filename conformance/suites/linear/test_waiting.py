"""Cases of frozen weights that wait in host memory, and are on the device only while a layer computes."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import DTYPE, MEMORY_PEAK, MEMORY_PINNED
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.accelerator.test_memory import peak_of

PLACES = {"pageable": (), "locked": (MEMORY_PINNED,)}
LAYERS, TOKENS, WIDTH = 4, 7, 33
#: Width of layers whose weights are 1 MiB each in float32, so that activations do not count.
WIDE = 512


class _FromHost(torch.autograd.Function):
    """x W^T where W is copied to the device for the product, and once more for the gradient of x: dy W."""

    @staticmethod
    def forward(ctx, x, waiting):
        ctx.waiting = waiting
        return x @ _copied(waiting, x).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ _copied(ctx.waiting, gradient), None


def _copied(waiting, like):
    return waiting.to(like.device, non_blocking=waiting.device.type == "cpu" and waiting.is_pinned(), copy=True)


class Waiting(nn.Module):
    """Layers with a tanh after each, whose weights (WIDTH, WIDTH) are on the host."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(_FromHost.apply(x, weight))
        return x


def drawn(seed, width):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(width, width, generator=generator) / width**0.5 for _ in range(LAYERS)]


def exactly(weights, x):
    """Return the output and the input's gradient in float64 on the host."""
    whole = x.double().requires_grad_()
    output = whole
    for weight in weights:
        output = torch.tanh(output @ weight.double().t())
    output.square().sum().backward()
    return output.detach(), whole.grad


@case("linear.waiting", requires=[DTYPE], axes={"dtype": ("float32", "bfloat16"), "place": PLACES})
def test_waiting(accelerator, device, dtype, place, check):
    """Frozen weights on the host give the right output and gradient, and values written there later are used."""
    kind = getattr(torch, dtype)
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(3)).to(kind)
    hosts = [weight.to(kind) for weight in drawn(1, WIDTH)]
    if place == "locked":
        hosts = [accelerator.pin_memory(weight) for weight in hosts]
    model = Waiting(hosts)

    for turn in range(3):
        given = x.to(device, copy=True).requires_grad_()
        output = model(given)
        output.square().sum().backward()

        expected, gradient = exactly(hosts, x)
        near(check, f"the output in turn {turn}", output, expected, Near.TRAJECTORY)
        near(check, f"the input's gradient in turn {turn}", given.grad, gradient, Near.TRAJECTORY)
        accelerator.synchronize()  # a copy that does not block may still read the weights
        for weight, other in zip(hosts, drawn(2 + turn, WIDTH), strict=True):
            weight.copy_(other.to(kind))


@case("linear.waiting.memory", requires=[MEMORY_PEAK, DTYPE.on("float32")])
def test_memory(accelerator, device, check):
    """A pass over layers whose weights wait on the host needs memory for two of the four weights, and keeps none."""
    hosts, size = drawn(1, WIDE), 4 * WIDE * WIDE
    given = torch.ones(1, WIDE, device=device, requires_grad=True)

    def work():
        Waiting(hosts)(given).sum().backward()
        given.grad = None

    raised = peak_of(accelerator, work)
    before = accelerator.memory_allocated()
    work()
    accelerator.synchronize()
    kept = accelerator.memory_allocated() - before

    check.that(raised >= size, f"the peak rose by {raised} bytes, less than the {size} bytes of one weight")
    message = f"the peak rose by {raised} bytes; two weights have {2 * size} bytes, and all of them {LAYERS * size}"
    check.that(raised <= 2.5 * size, message)
    check.that(kept < size, f"{kept} bytes are allocated after the pass; a weight has {size} bytes")

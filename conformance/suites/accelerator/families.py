"""One small call of each family of kernels, with float32 inputs that depend on a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from conformance.accelerators.capabilities import Cell, Mode
from conformance.numerics.nearness import Near, near


class Family(NamedTuple):
    """A function of tensors, the operator that a device has to claim, and its inputs on the host by a size."""

    operator: str
    call: Callable[..., torch.Tensor]
    inputs: Callable[[int], list[torch.Tensor]]


def _values(*shape: int, turn: float = 0.37) -> torch.Tensor:
    """Return distinct numbers of both signs, in no order."""
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * turn + 0.1).float().view(shape)


def _indices(count: int, below: int) -> torch.Tensor:
    return torch.arange(count) * 5 % below


def _image(n: int) -> torch.Tensor:
    return _values(2, 4, n + 3, n + 2)


FAMILIES = {
    "convolution": Family("nn.functional.conv2d", lambda x, w: F.conv2d(x, w, padding=1),
                          lambda n: [_image(n), _values(6, 4, 3, 3, turn=0.7)]),
    "transposed_convolution": Family("nn.functional.conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2),
                                     lambda n: [_image(n), _values(4, 3, 2, 2, turn=0.7)]),
    "product": Family("matmul", torch.matmul, lambda n: [_values(n, 7), _values(7, n + 1, turn=0.9)]),
    "batched_product": Family("bmm", torch.bmm, lambda n: [_values(3, n, 5), _values(3, 5, n, turn=0.9)]),
    "linear": Family("nn.functional.linear", F.linear, lambda n: [_values(n, 8), _values(5, 8, turn=0.9), _values(5)]),
    "layer_norm": Family("nn.functional.layer_norm", lambda x, w: F.layer_norm(x, (8,), w),
                         lambda n: [_values(n, 8), _values(8, turn=0.9)]),
    "batch_norm": Family("nn.functional.batch_norm", lambda x, w: F.batch_norm(x, None, None, w, training=True),
                         lambda n: [_image(n), _values(4, turn=0.9)]),
    "softmax": Family("softmax", lambda x: x.softmax(-1), lambda n: [_values(n, 9)]),
    "loss": Family("nn.functional.cross_entropy", F.cross_entropy, lambda n: [_values(n, 9), _indices(n, 9)]),
    "embedding": Family("nn.functional.embedding", lambda w, i: F.embedding(i, w),
                        lambda n: [_values(11, 4), _indices(n, 11)]),
    "sort": Family("sort", lambda x: x.sort(-1).values, lambda n: [_values(3, n)]),
    "topk": Family("topk", lambda x: x.topk(2, -1).values, lambda n: [_values(3, n)]),
    "scan": Family("cumsum", lambda x: x.cumsum(0), lambda n: [_values(n, 4)]),
    "sum": Family("sum", lambda x: x.sum(0), lambda n: [_values(n, 4)]),
    "gather": Family("gather", lambda x, i: x.gather(0, i.view(-1, 1).expand(-1, 4)),
                     lambda n: [_values(n, 4), _indices(n, n)]),
    "writes": Family("index_put", lambda x, y, i: x.index_put((i,), y, accumulate=True),
                     lambda n: [_values(7, 4), _values(n, 4, turn=0.9), _indices(n, 7)]),
    "pooling": Family("nn.functional.max_pool2d", lambda x: F.max_pool2d(x, 2), lambda n: [_image(n)]),
    "resizing": Family("nn.functional.interpolate.bilinear",
                       lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda n: [_image(n)]),
    "attention": Family("nn.functional.scaled_dot_product_attention", F.scaled_dot_product_attention,
                        lambda n: [_values(1, 2, n, 8), _values(1, 2, n, 8, turn=0.5), _values(1, 2, n, 8, turn=0.9)]),
    "elementwise": Family("where", lambda x, y: torch.where(x > y, x * y, x + y),
                          lambda n: [_values(n, 5), _values(n, 5, turn=0.9)]),
    "joining": Family("cat", lambda x, y: torch.cat([x, y.t()]), lambda n: [_values(n, 5), _values(5, n, turn=0.9)]),
}  # fmt: skip

#: Requirements of each family: its operator, forward and backward.
NEEDS = {
    name: tuple(Cell(f"operators.{family.operator}", "float32", mode.value) for mode in Mode)
    for name, family in FAMILIES.items()
}


class Made(NamedTuple):
    """The result of a call and the gradients of its inputs."""

    result: torch.Tensor
    gradients: list[torch.Tensor]


def run(family: Family, inputs: list[torch.Tensor], *, training: bool = True) -> Made:
    """Call a family, and run backward from a cotangent that differs from element to element."""
    given = [x.clone().requires_grad_(training and x.is_floating_point()) for x in inputs]
    result = family.call(*given)
    if training:
        weight = _values(*result.shape, turn=1.3).to(dtype=result.dtype).to(result.device)
        result.backward(weight)
    return Made(result.detach(), [x.grad for x in given if x.grad is not None])


def check_family(check, name: str, n: int, place, what: str, *, training: bool = True) -> None:
    """Check a call with inputs of a size on a device, ``place``: values, gradients, and where they are."""
    family = FAMILIES[name]
    inputs = family.inputs(n)
    exact = run(family, [x.double() if x.is_floating_point() else x for x in inputs], training=training)
    found = run(family, [x.to(place) for x in inputs], training=training)
    count, due = len(found.gradients), len(exact.gradients)
    check.equal(count, due, f"{name}, {what}: the number of inputs that have a gradient")
    for part, tensor, right, kind in (
        ("result", found.result, exact.result, Near.FORWARD),
        *((f"gradient {i}", *pair, Near.GRADIENTS) for i, pair in enumerate(zip(*found[1:], *exact[1:], strict=True))),
    ):
        on = (tensor.device.type, tensor.device.index)
        wanted = torch.device(place)
        check.that(wanted.index is None or on == (wanted.type, wanted.index),
                   f"{name}, {what}: the {part} is on {tensor.device}, not on {wanted}")  # fmt: skip
        dtype = torch.float32 if right.is_floating_point() else right.dtype
        check.equal(tensor.dtype, dtype, f"{name}, {what}: the dtype of the {part}")
        near(check, f"{name}, {what}: the {part}", tensor, right, kind)

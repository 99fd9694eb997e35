"""Linear layers whose products have float8 operands, forward and backward, in the training of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conformance.judging.finding import environment_lacks

from .comparing import relative_error
from .families import Family
from .family_checks import LIMITS, reference_batch
from .family_loop import model_on, placed
from .loop import HOST, RunDevice, exact

#: Steps of a training, its learning rate, and the rows of its batch.
_STEPS, _RATE, _ROWS = 2, 0.05, 2
#: Bits of the mantissa, largest number, and smallest distance of two numbers, for each float8 dtype.
_FORMATS = {torch.float8_e4m3fn: (3, 448.0, 2.0**-9), torch.float8_e5m2: (2, 57344.0, 2.0**-16)}


@dataclass
class Operand:
    """Tensor in float8 with the scale by which it was divided, and the values before."""

    values: torch.Tensor
    stored: torch.Tensor
    scale: torch.Tensor


@dataclass
class Product:
    """Product of two operands, as the device has computed it."""

    layer: str
    what: str
    left: Operand
    right: Operand
    found: torch.Tensor


def _narrowed(values: torch.Tensor, kind: torch.dtype) -> Operand:
    """Return the tensor divided by its largest element, so that it fills the range of the dtype."""
    scale = values.abs().amax().float().clamp(min=1e-30) / _FORMATS[kind][1]
    # The optimizer changes weights in place.
    return Operand(values.clone(), (values / scale).to(kind), scale)


def _product(layer: Any, what: str, left: Operand, right: Operand) -> torch.Tensor:
    """Return left times right in float32, and record it. The second operand has to be stored by columns."""
    columns = Operand(right.values, right.stored.t().contiguous().t(), right.scale)
    found = torch._scaled_mm(
        left.stored.contiguous(), columns.stored, scale_a=left.scale, scale_b=right.scale, out_dtype=torch.float32
    )
    layer.products.append(Product(layer.name, what, left, columns, found))
    return found


def _turned(operand: Operand) -> Operand:
    return Operand(operand.values.t(), operand.stored.t(), operand.scale)


class _Linear(torch.autograd.Function):
    """Three products of a linear layer: its output, the gradient of its input, and the gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.layer = layer
        ctx.x, ctx.weight = (_narrowed(part.detach(), torch.float8_e4m3fn) for part in (x, weight))
        return _product(layer, "output", ctx.x, _turned(ctx.weight))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        given = _narrowed(gradient, torch.float8_e5m2)
        of_input = _product(ctx.layer, "gradient of the input", given, ctx.weight)
        return of_input, _product(ctx.layer, "gradient of the weight", _turned(given), ctx.x), None


class Float8Linear(nn.Module):
    """Linear layer that computes with float8 operands and keeps float32 weights."""

    def __init__(self, name: str, linear: nn.Linear, products: list[Product]) -> None:
        super().__init__()
        self.name, self.weight, self.products = name, linear.weight, products

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product of the last dimension with the weight."""
        return _Linear.apply(x.flatten(0, -2), self.weight, self).unflatten(0, x.shape[:-1])


def check_float8_training(check: Any, family: Family, run_device: RunDevice) -> None:
    """Check every operand and every product of a training with float8 layers, and its losses against the oracle's."""
    products: list[Product] = []
    model = model_on(family, run_device, torch.float32).train()
    for name, layer in [each for each in model.named_modules() if isinstance(each[1], nn.Linear)]:
        if layer.bias is None and name != "lm_head":
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Float8Linear(name, layer, products))
    oracle = model_on(family, HOST, torch.float64).train()
    try:
        losses = _losses(family, model, run_device, torch.float32)
    except RuntimeError as error:
        # A device may keep tensors of float8 and have no products of them; the declaration says the first only.
        if "_scaled_mm" not in str(error) and "scaled_gemm" not in str(error):
            raise
        environment_lacks(f"this device has no products of float8: {str(error).splitlines()[0]}")
    wanted = _losses(family, oracle, HOST, torch.float64)

    layers = {product.layer for product in products}
    check.equal(len(products), 3 * _STEPS * len(layers), "the number of products")
    worst = max(_check_product(check, product) for product in products)
    for step, (loss, right) in enumerate(zip(losses, wanted, strict=True), 1):
        error, allowed = abs(loss - right) / right, LIMITS["float8"]["loss"]
        check.that(error <= allowed, f"the loss of step {step} is off by {error:.3g}, allowed {allowed:.3g}")
    check.metric("product_error", worst)
    check.metric("loss_error", max(abs(loss - right) / right for loss, right in zip(losses, wanted, strict=True)))


def _losses(family: Family, model: nn.Module, run_device: RunDevice, kind: torch.dtype) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    inputs, targets = placed(_some_rows(reference_batch(family)), run_device, kind)
    losses = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = family.kind.loss(model(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _some_rows(batch: Any) -> Any:
    """Return some rows of a batch: every layer has all three products of them, and their time grows with the rows."""
    inputs, targets = batch
    return {name: part[:_ROWS] for name, part in inputs.items()}, targets[:_ROWS]


def _check_product(check: Any, product: Product) -> float:
    """Check that both operands are within half a step of their values, and the product is that of the operands."""
    place = f"the {product.what} of {product.layer}"
    for operand in (product.left, product.right):
        half = _half_step(operand)
        over = float(((_whole(operand) - exact(operand.values)).abs() / half).max())
        check.that(over <= 1 + 1e-5, f"an operand of {place} is {over:.3g} half steps away from its value")
    wanted = _whole(product.left) @ _whole(product.right)
    error, allowed = relative_error(exact(product.found), wanted), LIMITS["float8"]["product"]
    check.that(error <= allowed, f"{place} is off by {error:.3g}, allowed {allowed:.3g}")
    return error


def _whole(operand: Operand) -> torch.Tensor:
    """Return the numbers for which the stored bits stand, float64 on the host."""
    return operand.stored.cpu().double() * operand.scale.cpu().double()


def _half_step(operand: Operand) -> torch.Tensor:
    """Return half the distance from each value to the next number that can be stored."""
    mantissa, _, smallest = _FORMATS[operand.stored.dtype]
    scaled = exact(operand.values).abs() / operand.scale.cpu().double()
    power = 2.0 ** torch.floor(torch.log2(scaled.clamp(min=1e-300)))
    # The division by the scale is rounded in float32.
    return ((power * 2.0**-mantissa).clamp(min=smallest) / 2 + 2.0**-23 * scaled) * operand.scale.cpu().double()

"""Quantized weight cases: the dequantized weights, and a layer's product with them."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.kernels.specifications.fp_quantization import format_of, round_trip
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.ops.loading import functions_if_any

#: Outputs, inputs, and the size of a group along the inputs, by the name in the case id.
SHAPES = {"33x64": (33, 64, 32), "16x96": (16, 96, 96)}
#: Values that are rounded to float16: the scale, the smallest weight, the quotient and the sum.
ROUNDINGS = 4


def numbers(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@case(
    "compression.weights.integers",
    requires=[OP_BUILDERS, DTYPE.on("float16"), DTYPE.on("uint8")],
    axes={"bits": ("4", "8"), "shape": tuple(SHAPES)},
)
def test_integers(accelerator, check, device, bits, shape):
    """Dequantized weights are within half a quantization step, and the layer's product uses exactly these weights."""
    outputs, inputs, size = SHAPES[shape]
    weights, bits = numbers(outputs, inputs, seed=inputs), int(bits)
    rows = weights.view(-1, size)
    # Asymmetric codes: 0 stands for the smallest weight. Those of 4 bits are two to a byte, the first in the high bits.
    least, width = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    scale = (2**bits - 1) / width
    codes = ((rows - least) * scale).round().to(torch.uint8)
    stored = codes if bits == 8 else (codes[:, ::2] << 4) | codes[:, 1::2]
    functions = functions_if_any(accelerator, "QuantizerBuilder")
    dequantize = getattr(functions, f"dequantize_int{bits}_to_half_experimental")

    found = dequantize(stored.to(device), scale.half().to(device), least.half().to(device), len(rows), size)

    error = (found.cpu().double() - rows).abs() - width * 0.5 / (2**bits - 1)
    allowed = ROUNDINGS * 2.0**-11 * (width + least.abs())  # 2^-11 is the unit roundoff of float16
    check.that(bool((error <= allowed).all()), f"weights are off by {float(error.max()):.3g} more than half a step")
    check_product(check, device, found.view(outputs, inputs))


@case(
    "compression.weights.floats",
    requires=[OP_BUILDERS, DTYPE.on("bfloat16"), DTYPE.on("uint8")],
    axes={"bits": ("4", "6", "8", "12")},
)
def test_floats(accelerator, check, device, bits):
    """Dequantized weights are the nearest numbers of their format times the group's scale, as is their product."""
    outputs, inputs, size = SHAPES["33x64"]
    kind = format_of(int(bits), {"4": 1, "6": 2, "8": 3, "12": 4}[bits])
    rows = numbers(outputs, inputs, seed=kind.bits).to(torch.bfloat16).view(-1, size)
    functions = functions_if_any(accelerator, "FPQuantizerBuilder")
    stored = torch.zeros(len(rows), size * kind.bits // 8 + 4, dtype=torch.uint8, device=device)
    found = torch.zeros_like(rows, device=device)

    functions.quantize(stored, rows.to(device), size, 0, kind.bits, kind.mantissa)
    functions.dequantize(found, stored, size, kind.mantissa, kind.exponent)

    expected = round_trip(rows, kind, torch.bfloat16)
    wrong = int(((found.cpu().double() - expected.value).abs() > expected.allowed).sum())
    check.equal(wrong, 0, f"number of weights that are not the nearest number of their {kind.bits}-bit format")
    check_product(check, device, found.view(outputs, inputs))


def check_product(check, device, weights):
    """Check a layer's float32 output and input gradient against float64, for weights (outputs, inputs)."""
    values = numbers(7, weights.shape[1], seed=7).float()
    inputs = values.to(device).requires_grad_()

    result = torch.nn.functional.linear(inputs, weights.float())
    result.sum().backward()

    exact = weights.cpu().double()
    near(check, "the product", result, values.double() @ exact.t(), Near.FORWARD, by_device=True)
    near(check, "its gradient", inputs.grad, exact.sum(0).expand(7, -1), Near.GRADIENTS, by_device=True)

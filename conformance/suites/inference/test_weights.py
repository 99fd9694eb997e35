"""Quantized weight cases: products with weights of 4 and 8 bits are within the error bound of their codes."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .decoding import Decoder, workspace
from .few_bits import FewBits, allowed, int8_layers
from .language_model import exact_model, language_models, some_tokens

OUTPUTS, INPUTS, TOKENS = 33, 48, 5
#: Quantization groups by bits: one for each row, as the int8 kernel requires it, and two for each row.
GROUPS = {8: OUTPUTS, 4: 2 * OUTPUTS}


@case(
    "inference.weight_only",
    axes={"bits": ("8", "4"), "dtype": ("float32", "float16", "bfloat16")},
    requires=[OP_BUILDERS, DTYPE, DTYPE.on("float32"), DTYPE.on("int8")],
)
def test_weight_only(accelerator, device, bits, dtype, check):
    """Products with quantized weights agree with those of the original weights within half a quantization step."""
    bits, kind = int(bits), getattr(torch, dtype)
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator)
    # Rows of the identity give every weight on its own; random rows give sums over many weights.
    source = torch.cat([torch.eye(INPUTS), torch.randn(TOKENS, INPUTS, generator=generator)]).to(kind)

    stored = FewBits.of(weight.to(device), bits, GROUPS[bits], accelerator)
    found = stored.product(source[None].to(device), accelerator)

    check.equal(stored.codes.nbytes, OUTPUTS * INPUTS * bits // 8, "number of bytes of the codes")
    check.equal(found.dtype, kind, "the dtype of the products")
    exact = source.double() @ weight.double().T
    bound = allowed(weight.double(), source.double(), bits, GROUPS[bits], kind)
    error = (found[0].cpu().double() - exact).abs()
    wrong = int((~(error <= bound)).sum())  # NaN counts as wrong
    worst = float((error / bound).max())
    check.that(wrong == 0, f"{wrong} products are wrong; the worst error is {worst:.3g} times its bound")
    check.metric("error_of_bound", round(worst, 6))


@case(
    "inference.int8_model",
    axes={"dtype": ("float32", "bfloat16")},
    requires=[OP_BUILDERS, DTYPE, DTYPE.on("float32"), DTYPE.on("int8")],
)
def test_int8_model(accelerator, device, dtype, check):
    """A model with int8 weights generates the logits of a float64 model with the dequantized weights."""
    _, model = language_models(dtype)
    model, tokens, (kind, dequantized) = model.to(device), some_tokens(2, 7), int8_layers(accelerator)

    with workspace(accelerator, getattr(torch, dtype), 2, 7) as injector:
        found = Decoder(model, injector, kind=kind).singly(tokens.to(device), 4)

    check.that(bool(found.any()), "all logits are 0")
    exact = exact_model({**model.state_dict(), **dequantized})
    near(check, "the logits", found, exact(tokens).detach(), Near.FORWARD, by_device=True)

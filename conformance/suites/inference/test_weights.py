"""Linear layers that store their weights in 4 or 8 bits: no further off than the steps of their codes allow."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.case import case
from conformance.numerics.nearness import Near, near

from .decoding import Decoder, workspace
from .few_bits import FewBits, allowed, int8_layers
from .language_model import exact_model, language_models, some_tokens

OUTPUTS, INPUTS, TOKENS = 33, 48, 5
#: How many steps the weight has: one for each row, as the kernel for int8 wants it, and two.
GROUPS = {8: OUTPUTS, 4: 2 * OUTPUTS}


@case(
    "inference.weight_only",
    axes={"bits": ("8", "4"), "dtype": ("float32", "float16", "bfloat16")},
    requires=[OP_BUILDERS, DTYPE, DTYPE.on("float32"), DTYPE.on("int8")],
)
def test_weight_only(accelerator, device, bits, dtype, check):
    """Products are those with the weights before they were stored, within what half a step of each weight makes.

    Inputs that are one at one place and zero elsewhere give every weight by itself; the others are sums of many.
    """
    bits, kind = int(bits), getattr(torch, dtype)
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator)
    source = torch.cat([torch.eye(INPUTS), torch.randn(TOKENS, INPUTS, generator=generator)]).to(kind)

    stored = FewBits.of(weight.to(device), bits, GROUPS[bits], accelerator)
    found = stored.product(source[None].to(device), accelerator)

    check.equal(stored.codes.nbytes, OUTPUTS * INPUTS * bits // 8, "bytes of the codes")
    check.equal(found.dtype, kind, "the dtype of the products")
    exact = source.double() @ weight.double().T
    bound = allowed(weight.double(), source.double(), bits, GROUPS[bits], kind)
    error = (found[0].cpu().double() - exact).abs()
    wrong = int((~(error <= bound)).sum())
    worst = float((error / bound).max())
    check.that(wrong == 0, f"{wrong} products are off, the worst by {worst:.3g} of what its codes' steps allow")
    check.metric("error_of_bound", round(worst, 6))


@case(
    "inference.int8_model",
    axes={"dtype": ("float32", "bfloat16")},
    requires=[OP_BUILDERS, DTYPE, DTYPE.on("float32"), DTYPE.on("int8")],
)
def test_int8_model(accelerator, device, dtype, check):
    """Layers whose products have int8 weights generate what a model with those weights' values generates."""
    _, model = language_models(dtype)
    model, tokens, (kind, worth) = model.to(device), some_tokens(2, 7), int8_layers(accelerator)

    with workspace(accelerator, getattr(torch, dtype), 2, 7) as injector:
        found = Decoder(model, injector, kind=kind).singly(tokens.to(device), 4)

    exact = exact_model({**model.state_dict(), **worth})
    near(check, "the logits", found, exact(tokens).detach(), Near.FORWARD)

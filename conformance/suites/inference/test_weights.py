"""Linear layers that store their weights in 4 or 8 bits: no further off than the steps of their codes allow."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, OP_BUILDERS
from conformance.case import case

from .few_bits import FewBits, allowed

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

"""Signs as bits, and back."""

from __future__ import annotations

import numpy as np
import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.case import case
from conformance.kernels.compression import packing

#: What the sign bit alone would get wrong, and what arithmetic would.
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 3.0, -2.0)
SIZES = ("0", "1", "7", "8", "9", "1001", "65537")


def numbers(size):
    """Random numbers with the special ones among them."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    values[: min(size, len(SPECIAL))] = torch.tensor(SPECIAL)[:size]
    return values


def signs(values):
    """+1 for zero of either sign and all above, -1 for all below and NaN."""
    return torch.where(values >= 0, 1.0, -1.0)


def check_packing(check, packbits, unpackbits, values, device):
    """The bits are NumPy's, most significant first; unpacking gives the signs back, and -1 for the padding."""
    size = values.numel()

    packed = packbits(values.to(device), size)
    unpacked = unpackbits(packed, packed.numel())

    check.equal(packed.cpu().numpy().tobytes(), np.packbits(values.numpy() >= 0).tobytes(), f"bits of {size} signs")
    check.equal(unpacked.cpu()[:size], signs(values), f"signs of {size} elements")
    check.that(bool((unpacked[size:] == -1).all()), "padding is not unpacked as -1")
    check.equal(packed.device.type, device.type, "where the bits are")


@case("compression.packbits", requires=[DTYPE.on("uint8"), DTYPE.on("float32")], axes={"size": SIZES})
def test_packbits(check, device, size):
    """The portable kernel, on the device: unpacking what was packed gives every sign back, special values' too."""
    check_packing(check, packing.packbits, packing.unpackbits, numbers(int(size)), device)


@case("compression.packbits.layout", requires=[DTYPE.on("uint8"), DTYPE.on("float32")])
def test_layout(check, device):
    """Strides and what lies behind the packed elements do not matter."""
    values = numbers(48).view(6, 8)

    across = packing.packbits(values.to(device).t(), 48)
    first = packing.packbits(values.to(device), 16)

    check.equal(across.cpu().numpy().tobytes(), np.packbits(values.t().numpy() >= 0).tobytes(), "a transposed tensor")
    check.equal(first.cpu().numpy().tobytes(), np.packbits(values[:2].numpy() >= 0).tobytes(), "the first 16 elements")


@case("compression.pruning", requires=[DTYPE.on("float32"), DTYPE.on("bool")], axes={"how": ("elements", "rows")})
def test_pruning(check, device, how):
    """Pruned weights stay 0 through training steps, get no gradient, and the others are trained."""
    from torch.nn.utils import prune

    layer = torch.nn.Linear(8, 6).to(device)
    if how == "elements":
        prune.l1_unstructured(layer, "weight", amount=20)
    else:
        prune.ln_structured(layer, "weight", amount=2, n=2, dim=0)
    before, mask = layer.weight_orig.detach().cpu().clone(), layer.weight_mask.cpu().bool()

    for _ in range(3):
        layer.weight_orig.grad = None
        layer(torch.randn(4, 8, device=device)).square().sum().backward()
        layer.weight_orig.data.sub_(layer.weight_orig.grad, alpha=0.01)
    layer(torch.randn(4, 8, device=device))

    changed = layer.weight_orig.detach().cpu() != before
    check.equal(int((~mask).sum()), 20 if how == "elements" else 16, "pruned weights")
    check.equal(int(changed[~mask].sum()), 0, "pruned weights that were trained")
    check.that(bool(changed[mask].all()), "weights that are not pruned were not trained")
    check.equal(int((layer.weight.detach().cpu()[~mask] != 0).sum()), 0, "pruned weights that are not 0")

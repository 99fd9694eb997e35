"""Packing cases: signs as bits and back, and pruned weights."""

from __future__ import annotations

import numpy as np
import torch

from conformance.accelerators.capabilities import DTYPE
from conformance.kernels.compression import packing
from conformance.plan.case import case

#: Values whose sign is wrong when only the sign bit is read, or when it is computed by arithmetic.
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 3.0, -2.0)
SIZES = ("0", "1", "7", "8", "9", "1001", "65537")


def numbers(size):
    """Return ``size`` random float32 numbers that begin with the special ones."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    values[: min(size, len(SPECIAL))] = torch.tensor(SPECIAL)[:size]
    return values


def signs(values):
    """Return +1 for positive numbers and zeros of either sign, -1 for negative numbers and NaN."""
    return torch.where(values >= 0, 1.0, -1.0)


def check_packing(check, packbits, unpackbits, values, device):
    """Check that the bits are those of np.packbits, and that unpacking gives the signs, and -1 for the padding."""
    size = values.numel()

    packed = packbits(values.to(device), size)
    unpacked = unpackbits(packed, packed.numel())

    check.equal(packed.cpu().numpy().tobytes(), np.packbits(values.numpy() >= 0).tobytes(), f"bits of {size} signs")
    check.equal(unpacked.cpu()[:size], signs(values), f"signs of {size} elements")
    check.that(bool((unpacked[size:] == -1).all()), "the padding is not unpacked as -1")
    check.equal(packed.device.type, device.type, "the device type of the packed bits")


@case("compression.packbits", requires=[DTYPE.on("uint8"), DTYPE.on("float32")], axes={"size": SIZES})
def test_packbits(check, device, size):
    """The portable kernel packs and unpacks the sign of every value, also of special ones, on the device."""
    check_packing(check, packing.packbits, packing.unpackbits, numbers(int(size)), device)


@case("compression.packbits.layout", requires=[DTYPE.on("uint8"), DTYPE.on("float32")])
def test_layout(check, device):
    """Packing does not depend on strides or on elements behind the packed ones."""
    values = numbers(48).view(6, 8)

    across = packing.packbits(values.to(device).t(), 48)
    first = packing.packbits(values.to(device), 16)

    check.equal(across.cpu().numpy().tobytes(), np.packbits(values.t().numpy() >= 0).tobytes(), "a transposed tensor")
    check.equal(first.cpu().numpy().tobytes(), np.packbits(values[:2].numpy() >= 0).tobytes(), "the first 16 elements")


@case("compression.pruning", requires=[DTYPE.on("float32"), DTYPE.on("bool")], axes={"how": ("elements", "rows")})
def test_pruning(check, device, how):
    """Pruned weights stay 0 through training steps and get no gradient, and the other weights are trained."""
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
    # Two rows of 8 weights are 16.
    check.equal(int((~mask).sum()), 20 if how == "elements" else 16, "number of pruned weights")
    check.equal(int(changed[~mask].sum()), 0, "number of pruned weights that were trained")
    kept = int((~changed[mask]).sum())
    check.that(not kept, f"{kept} weights that are not pruned did not change in three training steps")
    check.equal(int((layer.weight.detach().cpu()[~mask] != 0).sum()), 0, "number of pruned weights that are not 0")

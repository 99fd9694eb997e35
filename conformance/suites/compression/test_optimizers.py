"""Optimizer cases: 1-bit Adam, 1-bit LAMB and 0/1 Adam agree at every step with a single-process reference."""

from __future__ import annotations

import io

import torch
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE
from conformance.kernels.compression import OneBitAdam, OneBitLamb, ZeroOneAdam
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from . import optimizer_emulation as emulation
from .packing import Packing

#: Every optimizer imports it, which takes seconds.
RANK_IMPORTS = ("torch._dynamo",)
NEEDS = (COMM, COMM_ALL_TO_ALL, COMM_DTYPE.on("uint8"), COMM_DTYPE.on("float32"))
SHAPES = ((7, 5), (3,), (40,))
STEPS = 12
_COMMON = {"lr": 0.02, "weight_decay": 0.01}
#: The optimizer, its reference, and its options: compression begins within the steps.
KINDS = {
    "adam": (OneBitAdam, emulation.one_bit_adam, {**_COMMON, "freeze_step": 4}),
    "lamb": (OneBitLamb, emulation.one_bit_lamb, {**_COMMON, "freeze_step": 4}),
    "zero-one": (
        ZeroOneAdam,
        emulation.zero_one_adam,
        {**_COMMON, "var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 2},
    ),
}


def weights():
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(rank, step):
    """Return a gradient for each tensor; each is a tenth of the size of the one before it."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) * 10.0**-index for index, shape in enumerate(SHAPES)]


def take(optimizer, parameters, rank, step):
    for parameter, gradient in zip(parameters, gradients(rank, step), strict=True):
        parameter.grad = gradient.to(parameter.device)
    optimizer.step()


@case("compression.optimizer", requires=NEEDS, axes={"kind": tuple(KINDS)}, world_size=(2, 3))
def test_every_step(accelerator, check, device, kind, rank, world_size, group):
    """The weights agree with a float64 reference on the host after every step of warm-up and compression."""
    make, emulate, options = KINDS[kind]
    parameters = [nn.Parameter(tensor.to(device)) for tensor in weights()]
    packing = Packing(accelerator)
    optimizer = make(parameters, **options, packing=packing.functions)
    expected = emulate(
        [tensor.double() for tensor in weights()],
        lambda peer, step: [gradient.double() for gradient in gradients(peer, step)],
        world_size, STEPS, **options,
    )  # fmt: skip

    for step in range(STEPS):
        take(optimizer, parameters, rank, step)
        for index, (parameter, exact) in enumerate(zip(parameters, expected[step][rank], strict=True)):
            near(check, f"tensor {index} after step {step}", parameter, exact, Near.TRAJECTORY)

    packing.report(check)
    check.that(optimizer.bytes_sent > 0, "bytes_sent is 0: nothing was sent compressed")
    if kind != "zero-one":  # its ranks differ between two exchanges, as they take local steps
        check.same_on_all_ranks("weights", torch.cat([parameter.detach().flatten() for parameter in parameters]))


@case("compression.optimizer.resumed", requires=NEEDS, axes={"kind": tuple(KINDS)}, world_size=2)
def test_resumed(accelerator, check, device, kind, rank, group):
    """An optimizer saved in its compressed stage and loaded goes on with the same bits."""
    make, _, options = KINDS[kind]
    parameters = [nn.Parameter(tensor.to(device)) for tensor in weights()]
    packing = Packing(accelerator)
    optimizer, file = make(parameters, **options, packing=packing.functions), io.BytesIO()
    for step in range(9):
        take(optimizer, parameters, rank, step)
    # The optimizer's state holds the error feedback, so it has to survive too.
    torch.save((optimizer.state_dict(), [parameter.detach() for parameter in parameters]), file)
    file.seek(0)
    state, halfway = torch.load(file, weights_only=True)
    again = [nn.Parameter(tensor.clone()) for tensor in halfway]
    continued = make(again, **options, packing=packing.functions)
    continued.load_state_dict(state)

    for step in range(9, STEPS):
        take(optimizer, parameters, rank, step)
        take(continued, again, rank, step)

    for index, (parameter, loaded) in enumerate(zip(parameters, again, strict=True)):
        check.agree(loaded.detach().cpu(), parameter.detach().cpu(), f"tensor {index}")
        check.that(bool(parameter.detach().any()), f"tensor {index} is 0 after training")
    packing.report(check)

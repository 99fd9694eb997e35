"""torch.optim on the device: loops, grouped and fused kernels take the same steps; loss scaling sees overflows."""

from __future__ import annotations

import math

import torch

from conformance.accelerators.capabilities import AUTOCAST, Cell, Mode
from conformance.case import Case, case, cases

#: Around tiles, and beyond 16 bits.
SIZES = (1, 7, 63, 65, 513, 70001)
STEPS, RATE, DECAY = 3, 0.01, 0.1
OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {"betas": (0.9, 0.99)}, "_fused_adam_"),
    "AdamW": (torch.optim.AdamW, {"betas": (0.9, 0.99)}, "_fused_adamw_"),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}, "_fused_sgd_"),
    "Adagrad": (torch.optim.Adagrad, {}, "_fused_adagrad_"),
}
WAYS = ("loop", "foreach", "fused")
#: Per step a handful of roundings of the parameter and of the update, each half a unit in the last place (2^-24).
ROUNDINGS = 16


def steps() -> list[Case]:
    """Each optimizer in each of its three implementations. A fused one is an operator of its own."""
    return [_case(name, way) for name in OPTIMIZERS for way in WAYS if (name, way) != ("Adagrad", "fused")]


def _case(name: str, way: str) -> Case:
    operator = OPTIMIZERS[name][2] if way == "fused" else "add"
    return Case(
        id=f"utils.optimizer.step[{name}-{way}]",
        area="utils",
        axes=(("optimizer", name), ("way", way)),
        requires=(Cell(f"operators.{operator}", "float32", Mode.TRAINING.value),),
    )


def start(size, dtype, device):
    """A parameter and its gradients, the same wherever they are; some gradients are 0 and some tiny."""
    generator = torch.Generator().manual_seed(size)
    parameter = torch.randn(size, generator=generator)
    gradients = [torch.randn(size, generator=generator) for _ in range(STEPS)]
    for gradient in gradients:
        gradient[::5] = 0.0
        gradient[1::7] *= 1e-6
    return parameter.to(dtype).to(device).requires_grad_(), [one.to(dtype).to(device) for one in gradients]


def run(name, way, dtype, device):
    """The parameters after each step."""
    kind, options, _ = OPTIMIZERS[name]
    groups = [start(size, dtype, device) for size in SIZES]
    choice = {"foreach": way == "foreach", **({"fused": True} if way == "fused" else {})}
    optimizer = kind([one for one, _ in groups], lr=RATE, weight_decay=DECAY, **options, **choice)
    taken = []
    for step in range(STEPS):
        for parameter, gradients in groups:
            parameter.grad = gradients[step].clone()
        optimizer.step()
        taken.append([one.detach().to("cpu", torch.float64, copy=True) for one, _ in groups])
    return taken


@cases(steps)
def test_step(device, case, check):
    """Three steps give, element by element, what the plain loop gives on the host in float64."""
    axes = dict(case.axes)

    found = run(axes["optimizer"], axes["way"], torch.float32, device)

    expected = run(axes["optimizer"], "loop", torch.float64, torch.device("cpu"))
    check.equal(len(found), STEPS, "steps taken")
    for step, (ours, exact) in enumerate(zip(found, expected, strict=True)):
        for size, one, right in zip(SIZES, ours, exact, strict=True):
            bound = ROUNDINGS * (step + 1) * 2.0**-24 * (right.abs() + 1)
            wrong = int(((one - right).abs() > bound).sum())
            assert wrong == 0, f"step {step + 1}: {wrong} of {size} elements are wrong, {_worst(one, right)}"


def _worst(found, right):
    index = int((found - right).abs().argmax())
    return f"element {index} is {found[index].item()!r} and should be {right[index].item()!r}"


@case("utils.optimizer.scaler", requires=[AUTOCAST], axes={"value": ["inf", "-inf", "nan", "finite"]})
def test_scaler(device, value):
    """A step with an overflowing gradient is left out and the scale halved; any other step is taken."""
    weight = torch.ones(65, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    number = 1.0 if value == "finite" else float(value)

    scaler.scale(weight.sum()).backward()
    weight.grad[37] = number * 1024.0
    scaler.step(optimizer)
    scaler.update()

    left_out = not math.isfinite(number)
    expected = [1.0 if left_out else 0.0] * 65
    assert weight.tolist() == expected, f"after a gradient of {value} the weights are {weight.unique().tolist()}"
    assert scaler.get_scale() == (512.0 if left_out else 1024.0), f"the scale is {scaler.get_scale()}"

"""Cases for torch.optim: the loop, foreach and fused implementations, and loss scaling."""

from __future__ import annotations

import itertools
import math

import torch

from conformance.accelerators.capabilities import AUTOCAST, Cell, Mode
from conformance.plan.case import Case, case, cases

#: Sizes around tile edges, and one beyond 16-bit indices.
SIZES = (1, 7, 63, 65, 513, 70001)
#: Further parameters of the ways that take lists: more in all than the arguments of some launches hold.
SMALL = (3,) * 1019
#: Gradients in lists of a scaler: a launch takes as many as its arguments hold, for example 110 or 320.
LENGTHS = (111, 321, 1025)
#: Options of so many bits that none is a number of bfloat16, and so large that each shows in the results.
STEPS, RATE, DECAY, EPSILON = 3, 261 / 8192, 267 / 1024, 263 / 8192
BETAS = (445 / 512, 507 / 512)
OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {"betas": BETAS, "eps": EPSILON}, "_fused_adam_"),
    "AdamW": (torch.optim.AdamW, {"betas": BETAS, "eps": EPSILON}, "_fused_adamw_"),
    "SGD": (torch.optim.SGD, {"momentum": 461 / 512, "dampening": 277 / 1024}, "_fused_sgd_"),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 271 / 4096, "initial_accumulator_value": 281 / 2048, "eps": EPSILON},
                "_fused_adagrad_"),
}  # fmt: skip
WAYS = ("loop", "foreach", "fused")
#: Roundings of the parameter and of the update in one step, each half a unit in the last place (2^-24).
ROUNDINGS = 16


def steps() -> list[Case]:
    """Return a case for each implementation of each optimizer; a fused one needs an operator of its own."""
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
    """Return a parameter of ``size`` elements and its gradients, one per step.

    The numbers do not depend on the device. Some gradients are 0 and some are tiny.
    """
    generator = torch.Generator().manual_seed(size)
    parameter = torch.randn(size, generator=generator)
    gradients = [torch.randn(size, generator=generator) for _ in range(STEPS)]
    for gradient in gradients:
        gradient[::5] = 0.0
        gradient[1::7] *= 1e-6
    return parameter.to(dtype).to(device).requires_grad_(), [gradient.to(dtype).to(device) for gradient in gradients]


def _optimizer(name, way, parameters):
    kind, options, _ = OPTIMIZERS[name]
    # foreach=False is given even for "loop": without it torch chooses foreach by the device type.
    choice = {"foreach": way == "foreach", **({"fused": True} if way == "fused" else {})}
    return kind(parameters, lr=RATE, weight_decay=DECAY, **options, **choice)


def run(name, way, dtype, device, sizes):
    """Return the parameters after each step, float64 on the host."""
    groups = [start(size, dtype, device) for size in sizes]
    optimizer = _optimizer(name, way, [parameter for parameter, _ in groups])
    history = []
    for step in range(STEPS):
        for parameter, gradients in groups:
            parameter.grad = gradients[step].clone()  # optimizers may write into the gradient
        optimizer.step()
        history.append([parameter.detach().to("cpu", torch.float64, copy=True) for parameter, _ in groups])
    return history


@cases(steps)
def test_step(device, case, check):
    """Three optimizer steps match the host's loop in float64 element by element."""
    axes = dict(case.axes)
    sizes = SIZES if axes["way"] == "loop" else (*SIZES, *SMALL)

    found = run(axes["optimizer"], axes["way"], torch.float32, device, sizes)

    expected = run(axes["optimizer"], "loop", torch.float64, torch.device("cpu"), sizes)
    check.equal(len(found), STEPS, "steps taken")
    for step, (actual, exact) in enumerate(zip(found, expected, strict=True)):
        for size, values, right in zip(sizes, actual, exact, strict=True):
            bound = ROUNDINGS * (step + 1) * 2.0**-24 * (right.abs() + 1)
            wrong = int(((values - right).abs() > bound).sum())
            assert wrong == 0, f"step {step + 1}: {wrong} of {size} elements are wrong, {_worst(values, right)}"


def _worst(found, right):
    index = int((found - right).abs().argmax())
    return f"element {index} is {found[index].item()!r} and should be {right[index].item()!r}"


@case("utils.optimizer.scaler", requires=[AUTOCAST], axes={"value": ["inf", "-inf", "nan", "finite"]})
def test_scaler(accelerator, declaration, device, value):
    """The gradient scaler skips a step with an overflowing gradient, halves the scale, and takes any other step.

    Each implementation of an optimizer takes gradients that were unscaled before as they are.
    """
    weight = torch.ones(65, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    number = 1.0 if value == "finite" else float(value)

    scaler.scale(weight.sum()).backward()
    # The gradient is still multiplied by the scale of 1024.
    weight.grad[37] = number * 1024.0
    scaler.step(optimizer)
    scaler.update()

    left_out = not math.isfinite(number)
    expected = [1.0 if left_out else 0.0] * 65
    assert weight.cpu().tolist() == expected, (
        f"after a gradient of {value} the weights are {weight.unique().cpu().tolist()}"
    )
    assert scaler.get_scale() == (512.0 if left_out else 1024.0), f"the scale is {scaler.get_scale()}"
    _check_counts(device, number)
    for length in LENGTHS:
        _check_list(device, length, number)
    if torch.bfloat16 in accelerator.supported_dtypes():
        _check_list(device, LENGTHS[0], number, torch.bfloat16)
    for name, way in itertools.product(OPTIMIZERS, WAYS):
        needed = Cell(f"operators.{OPTIMIZERS[name][2]}", "float32", Mode.TRAINING.value)
        if way != "fused" or (name != "Adagrad" and declaration.supports(needed)):
            _check_unscaled(device, name, way, number)


def _check_unscaled(device, name, way, number):
    """Check two steps with gradients that are unscaled and halved before, and one between that has a scale."""
    size, between = SIZES[3], 1
    parameter, gradients = start(size, torch.float32, device)
    optimizer = _optimizer(name, way, [parameter])
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    scaler.scale(torch.zeros((), device=device))  # makes the scale
    exact, exact_gradients = start(size, torch.float64, torch.device("cpu"))
    alone = _optimizer(name, "loop", [exact])
    for step in range(STEPS):
        parameter.grad = gradients[step] * scaler.get_scale()
        exact.grad = exact_gradients[step].clone()
        if step == between:
            parameter.grad[37] *= number  # of a number that is not zero
        else:
            scaler.unscale_(optimizer)
            for each in (parameter, exact):
                each.grad.mul_(0.5)
        scaler.step(optimizer)
        scaler.update()
        if step != between or math.isfinite(number):
            alone.step()

    found, right = parameter.detach().to("cpu", torch.float64), exact.detach()
    wrong = int(((found - right).abs() > ROUNDINGS * STEPS * 2.0**-24 * (right.abs() + 1)).sum())
    label = f"{STEPS} steps of {name} by {way}, the first and the last with gradients that were unscaled before"
    assert wrong == 0, f"after {label}, {wrong} of {size} elements are wrong, {_worst(found, right)}"


def _check_counts(device, number):
    """Check that the scale doubles after three good steps in a row, and that any other step begins the count anew."""
    weight = torch.ones(2, device=device, requires_grad=True)
    optimizer, scales = torch.optim.SGD([weight], lr=1.0), []
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=3)
    for gradient in (1.0, 1.0, number, 1.0, 1.0, 1.0):
        scaler.scale(weight.sum()).backward()
        weight.grad.fill_(gradient)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())

    good = [1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 4096.0]
    expected = good if math.isfinite(number) else [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0]
    assert scales == expected, f"with a third gradient of {number}, the scales are {scales}"


def _check_list(device, length, number, dtype=torch.float32):
    """Check a step of the scaler for a list of small gradients, of which the last one alone is unlike the others."""
    weights = [torch.ones(2, device=device, dtype=dtype, requires_grad=True) for _ in range(length)]
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    scaler.scale(torch.zeros((), device=device))  # makes the scale
    for weight in weights:
        weight.grad = torch.full((2,), 1024.0, device=device, dtype=dtype)
    weights[-1].grad[1] = number * 1024.0

    scaler.step(torch.optim.SGD(weights, lr=1.0, foreach=False))
    scaler.update()

    left_out, found = not math.isfinite(number), torch.stack(weights).unique().cpu().tolist()
    label = f"a list of {length} gradients of {dtype}, the last one {number}"
    assert found == [1.0 if left_out else 0.0], f"after {label}, the weights are {found}"
    assert scaler.get_scale() == (512.0 if left_out else 1024.0), f"after {label}, the scale is {scaler.get_scale()}"

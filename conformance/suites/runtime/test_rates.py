"""Cases of learning-rate schedules and of clipping on one device, against formulas and float64."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils._foreach_utils import _device_has_foreach_support

from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

#: Steps, and the learning rate at the start.
STEPS, RATE = 12, 0.5


def _cycle(step):
    """Return the place in a triangle of four steps up and four down, from 0 to 1."""
    return 1 - abs((step % 8) / 4 - 1)


def _one_cycle(step):
    # Four of twelve steps up, along a cosine, and the others down.
    top, last = 0.3 * STEPS - 1, STEPS - 1
    start, most, least = RATE / 25, RATE, RATE / 25 / 1e4
    if step <= top:
        return most + (start - most) / 2 * (1 + math.cos(math.pi * step / top))
    return least + (most - least) / 2 * (1 + math.cos(math.pi * (step - top) / (last - top)))


#: A schedule of torch, and the formula of its rate in each step.
SCHEDULES = {
    "step": (lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5), lambda n: RATE * 0.5 ** (n // 3)),
    "steps": (
        lambda o: lr_scheduler.MultiStepLR(o, [2, 7], gamma=0.1),
        lambda n: RATE * 0.1 ** (sum(n >= edge for edge in (2, 7))),
    ),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), lambda n: RATE * 0.9**n),
    "cosine": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.01),
        lambda n: 0.01 + (RATE - 0.01) / 2 * (1 + math.cos(math.pi * n / STEPS)),
    ),
    "linear": (
        lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 6),
        lambda n: RATE * (0.25 + 0.75 * min(n, 6) / 6),
    ),
    "polynomial": (
        lambda o: lr_scheduler.PolynomialLR(o, 10, power=2.0),
        lambda n: RATE * (1 - min(n, 10) / 10) ** 2,
    ),
    "cyclic": (
        lambda o: lr_scheduler.CyclicLR(o, 0.1, RATE, 4, cycle_momentum=False),
        lambda n: 0.1 + (RATE - 0.1) * _cycle(n),
    ),
    "one-cycle": (lambda o: lr_scheduler.OneCycleLR(o, RATE, total_steps=STEPS, cycle_momentum=False), _one_cycle),
    "warm-up-then-decay": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.2, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
        ),
        lambda n: RATE * (0.2 + 0.8 * n / 4) if n < 4 else RATE * 0.8 ** (n - 4),
    ),
}


@case("runtime.rates", requires=[], axes={"schedule": tuple(SCHEDULES), "way": ("loop", "foreach")})
def test_rates(check, device, schedule, way):
    """In each step of a schedule, the rate is that of its formula, and the weights move by rate times gradient."""
    make_schedule, formula = SCHEDULES[schedule]
    weight = torch.ones(9, device=device, requires_grad=True)
    gradient = torch.linspace(-1, 1, 9)
    optimizer = torch.optim.SGD([weight], lr=RATE, foreach=way == "foreach")
    rates = make_schedule(optimizer)
    exact = torch.ones(9, dtype=torch.float64)

    for step in range(STEPS):
        found = optimizer.param_groups[0]["lr"]
        wanted = formula(step)
        check.that(math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12),
                   f"the rate of step {step} is {found}, not {wanted}")  # fmt: skip
        weight.grad = gradient.to(device, copy=True)
        optimizer.step()
        rates.step()
        exact -= wanted * gradient.double()
        near(check, f"the weights after step {step}", weight, exact, Near.TRAJECTORY)


@case("runtime.rates.plateau", requires=[], axes={"mode": ("min", "max")})
def test_plateau(check, device, mode):
    """A rate that waits for better losses of the device falls after as many steps without one as it should."""
    sign = 1.0 if mode == "min" else -1.0
    losses = [4.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0]
    optimizer = torch.optim.SGD([torch.ones(1, device=device, requires_grad=True)], lr=RATE)
    rates = lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=2, threshold_mode="abs")
    found, best, waited, rate, wanted = [], None, 0, RATE, []

    for loss in losses:
        rates.step((torch.full((4,), sign * loss, device=device)).mean())
        found.append(optimizer.param_groups[0]["lr"])
        # More than two steps in a row without a better loss halve the rate.
        waited = 0 if best is None or loss < best else waited + 1
        best = loss if best is None else min(best, loss)
        if waited > 2:
            rate, waited = rate / 2, 0
        wanted.append(rate)

    check.equal(found, wanted, "the rates")


@case("runtime.clipping.norms", requires=[], axes={
    "norm": ("1", "2", "3", "inf"), "way": ("foreach", "loop"), "most": ("0.5", "1000")})  # fmt: skip
def test_norms(check, device, norm, way, most):
    """Gradients are clipped by any norm over all of them, and are left alone below the bound."""
    kind, bound = float(norm), float(most)
    generator = torch.Generator().manual_seed(81)
    given = [torch.randn(shape, generator=generator) for shape in ((5, 7), (3,), (2, 2, 2))]
    parameters = [torch.zeros_like(value, device=device).requires_grad_() for value in given]
    for parameter, value in zip(parameters, given, strict=True):
        parameter.grad = value.to(device, copy=True)
    flat = torch.cat([value.flatten() for value in given]).double().abs()
    exact = flat.max() if norm == "inf" else flat.pow(kind).sum().pow(1 / kind)
    if way == "foreach" and not _device_has_foreach_support(device):
        # PyTorch itself refuses it for the device's type, and the gradients keep their bits.
        with contextlib.suppress(RuntimeError):
            nn.utils.clip_grad_norm_(parameters, bound, kind, foreach=True)
            check.that(False, "clip_grad_norm_() has not refused foreach=True, which PyTorch does on this device")
        for parameter, value in zip(parameters, given, strict=True):
            check.equal(parameter.grad.cpu(), value, "a gradient after a refused clip")
        return

    found = nn.utils.clip_grad_norm_(parameters, bound, kind, foreach=way == "foreach")

    near(check, "the norm", found, exact, Near.SUMS)
    factor = min(1.0, bound / (float(exact) + 1e-6))
    for parameter, value in zip(parameters, given, strict=True):
        if factor == 1.0:
            check.equal(parameter.grad.cpu(), value, "a gradient below the bound")
        else:
            near(check, "a clipped gradient", parameter.grad, value.double() * factor, Near.FORWARD)


@case("runtime.clipping.nonfinite", requires=[], axes={"value": ("inf", "nan"), "way": ("foreach", "loop")})
def test_nonfinite(check, device, value, way):
    """A norm that is not finite is an error where that is asked for, and the gradients keep their bits."""
    gradient = torch.arange(1.0, 10.0)
    gradient[4] = float(value)
    parameter = torch.zeros(9, device=device, requires_grad=True)
    parameter.grad = gradient.to(device, copy=True)
    error = None

    try:
        nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True, foreach=way == "foreach")
    except RuntimeError as caught:
        error = str(caught)

    check.that(error, "a norm that is not finite raises no error")
    check.equal(parameter.grad.cpu(), gradient, "the gradient after the error")


class Buffered(nn.Module):
    """A weight and a buffer of floats. Torch 2.13 cannot average buffers of integers outside the host."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("kept", torch.ones(3))


@case("runtime.average_of_weights", requires=[], axes={"kind": ("mean", "exponential"), "buffers": ("yes", "no")})
def test_average(check, device, kind, buffers):
    """The running average of a model's weights is that of the formula, with or without its buffers."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    layer = Buffered().to(device)
    average = get_ema_multi_avg_fn(0.75) if kind == "exponential" else None
    averaged = AveragedModel(layer, multi_avg_fn=average, use_buffers=buffers == "yes")
    values, expected = [2.0, -4.0, 8.0, 1.0], None

    for number, value in enumerate(values):
        with torch.no_grad():
            layer.weight.fill_(value)
            layer.kept.fill_(10 * value)
        averaged.update_parameters(layer)
        if expected is None:
            expected = value
        elif kind == "exponential":
            expected = 0.75 * expected + 0.25 * value
        else:
            expected += (value - expected) / (number + 1)

    near(check, "the average weight", averaged.module.weight, torch.full((3,), expected, dtype=torch.float64),
         Near.SUMS)  # fmt: skip
    mean = 10 * (expected if buffers == "yes" else values[-1])
    near(check, "the buffer", averaged.module.kept, torch.full((3,), mean, dtype=torch.float64), Near.SUMS)

"""Cases of optimizers: their steps, their saved state, and several groups of parameters."""

from __future__ import annotations

import inspect
import io
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from conformance.accelerators.capabilities import GRAPH_CAPTURE, Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.nearness import Near, near
from conformance.plan.case import Case, cases
from conformance.suites.operators.cell import quiet

from . import fused
from .options import FUSED, FUSED_IN, LATE, LATE_STEP, OPTIMIZERS

STEPS = 4
#: Parameters of a long list: a launch takes as many as its arguments hold, for example 110 or 320.
MANY = 331
HOST = torch.device("cpu")
Parameters = list[torch.nn.Parameter]


def ways(name: str) -> list[str]:
    """Return the implementations of an optimizer."""
    kind = OPTIMIZERS[name]
    can_be_captured = not (kind.closure or kind.matrices or kind.sparse or name in ("Adagrad", "Adafactor", "SGD"))
    return ["loop", *kind.ways, *(["capturable"] if can_be_captured else [])]


def generate(subject: str):
    """Return a function that gives a case for each optimizer and implementation."""
    return lambda: [_case(subject, name, way) for name in OPTIMIZERS for way in ways(name)]


def _case(subject: str, name: str, way: str) -> Case:
    operators = [FUSED[name]] if way == "fused" else OPTIMIZERS[name].operators
    cells = [Cell(f"operators.{operator}", "float32", Mode.TRAINING.value) for operator in operators]
    return Case(
        id=f"optimizers.{subject}[{name}-{way}]",
        area="optimizers",
        axes=(("optimizer", name), ("way", way)),
        # Without graphs a step with its counters on the device has no purpose, and PyTorch refuses it on most devices.
        requires=(*cells, *([GRAPH_CAPTURE.cell] if way == "capturable" else [])),
    )


@cases(generate("steps"))
def test_steps(device, case, check):
    """Four steps with each set of options move every parameter as the plain loop does in float64."""
    name, way = dict(case.axes).values()
    _check_steps(check, name, way, device)
    if FUSED_IN.get(name) == way and _runs(name, "fused", device):
        _check_steps(check, name, "fused", device)


def _runs(name: str, way: str, device: torch.device) -> bool:
    """Return whether the device and the installed torch have this implementation."""
    try:
        with quiet():
            _trained(name, way, {"lr": torch.tensor(0.03)}, device, torch.float32)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def _check_steps(check, name: str, way: str, device: torch.device) -> None:
    late = _late(name) if way == "fused" else []
    for options in (*_options(name, way, searched_apart=True), *late):
        steps_before = LATE_STEP if options in late else 0
        with quiet():
            with fused.Kept() if steps_before else nullcontext() as kept:
                found = _trained(name, way, options, device, torch.float32, steps_before)
            exact = _trained(name, "loop", options, HOST, torch.float64, steps_before)
            if kept is not None:
                fused.check_other_gradients(check, name, kept)
        for i, (before, actual, right) in enumerate(zip(_start(name), found, exact, strict=True)):
            moved = (right.detach() - before.double()).abs().max()
            check.that(bool(moved > 0), f"{name}: parameter {i} does not move in float64")
            near(check, f"{name}({options}), parameter {i}", actual, right, Near.TRAJECTORY)
    if way in ("foreach", "fused"):
        _check_many(check, name, way, device)
    if way == "fused":
        _check_skipped(check, name, device)


def _check_many(check, name: str, way: str, device: torch.device) -> None:
    """Check the steps of more parameters than the arguments of one launch hold."""
    options = _options(name, way, searched_apart=True)[-1]
    start = list(torch.randn((MANY, 3), generator=torch.Generator().manual_seed(7)).unbind())
    with quiet():
        found = _trained(name, way, options, device, torch.float32, start=start)
        exact = _trained(name, "loop", options, HOST, torch.float64, start=start)
    label = f"{name}({options}), {MANY} parameters"
    actual, right = (torch.stack([parameter.detach() for parameter in some]) for some in (found, exact))
    near(check, label, actual, right, Near.TRAJECTORY)


def _check_skipped(check, name: str, device: torch.device) -> None:
    """Check that a fused step that a gradient scaler skips leaves parameters, state and its number as they were.

    A scaler that has divided the gradients before gives the optimizer no scale.
    """
    with quiet():
        for options, scale in itertools.product(_options(name, "fused", searched_apart=True), (4.0, None)):
            parameters, optimizer = _made(name, "fused", options, device, torch.float32)
            _step(name, optimizer, parameters, 0)
            before = _copied(parameters, optimizer)
            optimizer.grad_scale = scale and torch.tensor(scale, device=device)
            optimizer.found_inf = torch.tensor(1.0, device=device)
            for parameter in parameters:
                parameter.grad.fill_(torch.inf)
            optimizer.step()
            for number, (actual, old) in enumerate(zip(_copied(parameters, optimizer), before, strict=True)):
                what = f"parameter {number}" if number < len(parameters) else f"state {number - len(parameters)}"
                said = f"{name}({options}): {what} after a step that infinite gradients skip, scale {scale}"
                check.agree(actual, old, said)


def _copied(parameters: Parameters, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return copies of the parameters and of every tensor of the state on the host."""
    state = [value for some in optimizer.state.values() for value in some.values()]
    tensors = (*parameters, *(value for value in state if isinstance(value, torch.Tensor)))
    return [tensor.detach().to(HOST, copy=True) for tensor in tensors]


@cases(generate("state"))
def test_state(device, case, check):
    """An optimizer continues from its saved state with the same bits."""
    name, way = dict(case.axes).values()
    options = _options(name, way, searched_apart=False)[-1]
    with quiet():
        parameters, optimizer = _made(name, way, options, device, torch.float32)
        for step in range(2):
            _step(name, optimizer, parameters, step)
        file = io.BytesIO()
        torch.save({"state": optimizer.state_dict(), "parameters": [p.detach() for p in parameters]}, file)
        for step in range(2, STEPS):
            _step(name, optimizer, parameters, step)

        others, resumed = _made(name, way, options, device, torch.float32)
        file.seek(0)
        saved = torch.load(file, map_location=device, weights_only=True)
        with torch.no_grad():
            for parameter, value in zip(others, saved["parameters"], strict=True):
                parameter.copy_(value)
        resumed.load_state_dict(saved["state"])
        for step in range(2, STEPS):
            _step(name, resumed, others, step)

    for i, (actual, expected) in enumerate(zip(others, parameters, strict=True)):
        moved = not torch.equal(actual.detach().cpu(), _start(name)[i])
        check.that(moved and bool(actual.detach().cpu().all()), f"{name}: parameter {i} did not move, or has zeros")
        check.equal(actual.detach().cpu(), expected.detach().cpu(), f"{name}: parameter {i} after loading the state")


def _options(name: str, way: str, *, searched_apart: bool) -> list[dict[str, Any]]:
    """Return the sets of options.

    A capturable step computes 1 - beta^step on the device in float32. With the default of 0.999 that loses ten bits.
    """
    if searched_apart and OPTIMIZERS[name].closure:
        # Roundings may lead the comparisons of a line search elsewhere, so only its repeatability is judged.
        return list(OPTIMIZERS[name].options[:-1])
    quick = {"betas": (0.8, 0.9)} if way == "capturable" and name in _WITH_BETAS else {}
    # A fused kernel takes its rate as a number or as a tensor, by two overloads.
    plain = OPTIMIZERS[name].options
    rates = [{**options, "lr": torch.tensor(0.03)} for options in plain] if way == "fused" else []
    return [{**quick, **options} for options in (*rates, *plain)]


def _late(name: str) -> list[dict[str, Any]]:
    """Return the options of steps after many others, with the rate as a number and as a tensor."""
    taken = inspect.signature(getattr(torch.optim, name)).parameters
    options = {key: value for key, value in LATE.items() if key in taken}
    return [options, {**options, "lr": torch.tensor(LATE["lr"])}]


_WITH_BETAS = ("Adam", "AdamW", "NAdam")


def _trained(
    name: str,
    way: str,
    options: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype,
    steps_before: int = 0,
    start: Sequence[torch.Tensor] = (),
) -> Parameters:
    parameters, optimizer = _made(name, way, options, device, dtype, start)
    if steps_before:
        _step(name, optimizer, parameters, STEPS)
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].fill_(steps_before)
    # A step with a closure has several iterations of its own.
    for step in range(1 if OPTIMIZERS[name].closure else STEPS):
        if step == STEPS // 2:
            _change_rates(optimizer)
        _step(name, optimizer, parameters, step)
    return parameters


def _change_rates(optimizer: torch.optim.Optimizer) -> None:
    """Change the rate of each group as a schedule does: a tensor is written."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].mul_(0.75)
        else:
            group["lr"] *= 0.75


def _made(
    name: str,
    way: str,
    options: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype,
    start: Sequence[torch.Tensor] = (),
) -> tuple[Parameters, torch.optim.Optimizer]:
    kind = getattr(torch.optim, name, None)
    if kind is None:
        raise EnvironmentLacks(f"The installed torch has no torch.optim.{name}.")
    parameters = [torch.nn.Parameter(value.to(device, dtype, copy=True)) for value in start or _start(name)]
    # foreach=False is given for every other way: without it, torch chooses by the type of the device.
    chosen: dict[str, Any] = {"foreach": way == "foreach"} if OPTIMIZERS[name].ways else {}
    if way in ("fused", "capturable"):
        chosen |= {way: True}
    return parameters, kind(_grouped(name, parameters, options), **options, **chosen)


def _grouped(name: str, parameters: Parameters, options: dict[str, Any]) -> Any:
    """Return two groups of parameters with rates of their own; LBFGS takes one group."""
    if OPTIMIZERS[name].closure:
        return parameters
    # Products: a rate that is a tensor is written later, and the options keep theirs.
    rates = [options.get("lr", 0.02) * factor for factor in (1.0, 0.5)]
    return [{"params": some, "lr": rate} for some, rate in zip((parameters[:2], parameters[2:]), rates, strict=True)]


def _start(name: str) -> list[torch.Tensor]:
    """Return parameters of unlike shapes and strides in float32 on the host, one of them longer than a block."""
    generator = torch.Generator().manual_seed(7)
    kind = OPTIMIZERS[name]
    shapes = ((5, 7), (9, 4), (33, 2)) if kind.matrices or kind.sparse else ((33,), (), (5, 7), (4099,))
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    if not kind.sparse and not kind.closure:
        found.append(torch.randn((6, 9), generator=generator).t())
    return found


def _step(name: str, optimizer: torch.optim.Optimizer, parameters: Parameters, step: int) -> None:
    """Take one step on a loss with a minimum, whose gradients depend on the parameters.

    Gradients are computed on the host, so that the optimizer's kernels are all that the device computes. A closure
    computes the loss on the device.
    """
    kind = OPTIMIZERS[name]

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = sum((_target(p, 0) * p + 0.5 * _weight(p) * p * p).sum() for p in parameters)
        total.backward()
        return total

    if kind.closure:
        optimizer.step(loss)
        return
    for parameter in parameters:
        value = parameter.detach().cpu()
        if kind.sparse:
            dense = _target(value, step) + value
            dense[1::2] = 0  # rows without a gradient
            parameter.grad = dense.to(parameter.device).to_sparse(1)
        else:
            gradient = torch.empty_like(parameter)
            gradient.copy_(_target(value, step) + _weight(value) * value)
            parameter.grad = gradient
    optimizer.step()


def _weight(parameter: torch.Tensor) -> torch.Tensor:
    """Return unlike curvatures: with equal ones LBFGS ends after one iteration, and then follows rounding errors."""
    return torch.linspace(0.5, 2.0, parameter.numel()).reshape(parameter.shape).to(parameter)


def _target(parameter: torch.Tensor, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + parameter.numel())
    return torch.randn(parameter.shape, generator=generator).to(parameter)

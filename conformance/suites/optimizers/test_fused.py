"""Cases of the fused kernels of optimizers, called directly: options, narrow numbers, gradients that do not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.accelerators.capabilities import Cell, Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.nearness import Near, near
from conformance.numerics.trees import mapped
from conformance.plan.case import Case, cases

from .options import FUSED, LATE_STEP, OPTIMIZERS

HOST = torch.device("cpu")
#: Numbers that bfloat16 does not hold.
_RATE, _DECAY = 0.1234567, 0.2345678
_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Kernel:
    """A fused kernel: its name, how many lists of state it has besides the steps, and its options in turn."""

    name: str
    states: int
    options: tuple[dict[str, Any], ...]
    has_steps: bool = True
    #: Options with which the last list of state is empty.
    without_last: Callable[[dict[str, Any]], bool] = field(default=lambda options: False)


_ADAM = {"beta1": 0.99, "beta2": 0.997, "weight_decay": _DECAY, "eps": 0.01, "amsgrad": False, "maximize": False}
_ADAGRAD = {"lr_decay": 0.3, "weight_decay": _DECAY, "eps": 0.01, "maximize": False}
_SGD = {
    "weight_decay": _DECAY, "momentum": 0.9, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
_ADAMS = (
    _ADAM,
    {**_ADAM, "amsgrad": True},
    {**_ADAM, "amsgrad": True, "maximize": True},
    {**_ADAM, "maximize": True, "weight_decay": 0.0},
)
KERNELS = {
    "Adam": Kernel("_fused_adam_", 3, _ADAMS, without_last=lambda options: not options["amsgrad"]),
    "AdamW": Kernel("_fused_adamw_", 3, _ADAMS, without_last=lambda options: not options["amsgrad"]),
    "SGD": Kernel(
        "_fused_sgd_",
        1,
        (
            _SGD,
            {**_SGD, "dampening": 0.4, "maximize": True},
            {**_SGD, "nesterov": True},
            {**_SGD, "nesterov": True, "maximize": True},
            {**_SGD, "is_first_step": True},
            {**_SGD, "momentum": 0.0},
        ),
        has_steps=False,
        without_last=lambda options: not options["momentum"],
    ),
    "Adagrad": Kernel("_fused_adagrad_", 1, (_ADAGRAD, {**_ADAGRAD, "maximize": True})),
}


_NARROW = (torch.float16, torch.bfloat16)
#: Roundings of the largest movement that an element may be off: a sum of numbers that cancel keeps those of its terms.
_ROUNDINGS = 16
_SHAPES: tuple[tuple[int, ...], ...] = ((33,), (), (0,), (5, 7), (4099,), (0, 3))
#: Lengths in narrow dtypes: a kernel reads blocks of 8, 16 or 32 numbers, and then the rest one by one.
_LENGTHS = (1, 7, 8, 17, 20, 33, 100)


def _required(name: str, dtype: str) -> tuple[Cell, ...]:
    """Return the cells of a kernel. Of Adagrad, devices may have none, so its plain operators are required."""
    operators = [FUSED[name]] if name in FUSED else OPTIMIZERS[name].operators
    return tuple(Cell(f"operators.{operator}", dtype, Mode.TRAINING.value) for operator in operators)


def generate() -> list[Case]:
    """Return a case for each fused kernel."""
    return [
        Case(
            id=f"optimizers.fused_call[{name}]",
            area="optimizers",
            axes=(("optimizer", name),),
            requires=_required(name, "float32"),
        )
        for name in KERNELS
    ]


def generate_narrow() -> list[Case]:
    """Return a case for each fused kernel and narrow dtype."""
    return [
        Case(
            id=f"optimizers.fused_narrow[{name}-{dtype}]",
            area="optimizers",
            axes=(("optimizer", name), ("dtype", dtype)),
            requires=_required(name, dtype),
        )
        for name, dtype in itertools.product(KERNELS, ("float16", "bfloat16"))
    ]


@cases(generate)
def test_fused_call(device, case, check):
    """A fused kernel moves parameters and state as the host's in float64, and refuses gradients that do not fit."""
    name = dict(case.axes)["optimizer"]
    kernel = KERNELS[name]
    function = _function(kernel)
    for number, (options, scaled) in enumerate(itertools.product(kernel.options, (False, True))):
        lists = _lists(kernel, options, number)
        for rate in (_RATE, torch.tensor(_RATE)):
            given = {**options, "lr": rate, **(_scales() if scaled else {})}
            label = f"{kernel.name}({_shown(given)})"
            _check(check, function, label, lists, given, device, may_lack=name not in FUSED)
            _check_skipped(check, kernel, function, lists, given, device)
    _check_not_a_number(check, kernel, function, device)
    for (what, wrong), rate in itertools.product(_wrong(lists), (_RATE, torch.tensor(_RATE))):
        given = {**options, "lr": rate}
        _check_refusal(check, function, f"{kernel.name}({_shown(given)}) with {what}", wrong, given, device)


@cases(generate_narrow)
def test_fused_narrow(device, case, check):
    """A fused kernel moves every element of narrow parameters and state as the host's in float64, at every length."""
    axes = dict(case.axes)
    name, dtype = axes["optimizer"], getattr(torch, axes["dtype"])
    kernel = KERNELS[name]
    function = _function(kernel)
    shapes = tuple((length,) for length in _LENGTHS)
    for number, options in enumerate(kernel.options):
        lists = _lists(kernel, options, 2 * number, shapes)
        parts = 2 + kernel.states  # steps stay in float32
        lists = [*([tensor.to(dtype) for tensor in some] for some in lists[:parts]), *lists[parts:]]
        for scales in ({}, _scales()):
            given = {**options, "lr": _RATE, **scales}
            label = f"{kernel.name}({_shown(given)}) in {axes['dtype']}"
            _check(check, function, label, lists, given, device, may_lack=name not in FUSED)


def _function(kernel: Kernel) -> Any:
    function = getattr(torch, kernel.name, None)
    if function is None:
        raise EnvironmentLacks(f"The installed torch has no torch.{kernel.name}.")
    return function


def _check_skipped(check, kernel: Kernel, function, lists, options: dict[str, Any], device: torch.device) -> None:
    """Check that a step that infinite gradients skip changes no parameter, no state and no number of steps.

    Gradients that were divided by their scale before come without one.
    """
    infinite = [gradient * torch.inf for gradient in lists[1]]
    for what, gradients in (("infinite gradients", infinite), ("finite gradients", lists[1])):
        found = _on([lists[0], gradients, *lists[2:]], device)
        function(*found, **_on({**options, "found_inf": torch.tensor(1.0)}, device))
        for position, (some, before) in enumerate(zip(found, lists, strict=True)):
            for number, (actual, old) in enumerate(zip(some, before, strict=True)):
                if position != 1:
                    label = f"{kernel.name}({_shown(options)}) with found_inf and {what}: list {position}"
                    check.equal(actual.cpu(), old, f"{label}, tensor {number}")


def _lists(
    kernel: Kernel, options: dict[str, Any], seed: int, shapes: tuple[tuple[int, ...], ...] = _SHAPES
) -> list[list[torch.Tensor]]:
    """Return parameters, gradients, state and steps of tensors with unlike shapes, in float32 on the host."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2 + kernel.states)]
    # Second moments and sums of squares are positive.
    lists = [*drawn[:2], *([tensor.abs() for tensor in some] for some in drawn[2:])]
    if kernel.without_last(options):
        lists[-1] = []
    # bfloat16 does not hold every late step.
    before = LATE_STEP if seed % 2 else 0
    steps = [torch.tensor(float(before + 3 + number)) for number in range(len(shapes))]
    return [*lists, *([steps] if kernel.has_steps else [])]


def _scales() -> dict[str, torch.Tensor]:
    return {"grad_scale": torch.tensor(3.7), "found_inf": torch.tensor(0.0)}


def _shown(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={float(value) if torch.is_tensor(value) else value}" for name, value in options.items())


def _on(value: Any, device: torch.device) -> Any:
    return mapped(value, lambda leaf: leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else leaf)


def _wide(lists: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Return the lists in float64; steps are 0-dim numbers in float32 on every device."""
    is_step = lambda number: number == len(lists) - 1 and all(t.dim() == 0 for t in lists[number])  # noqa: E731
    return [some if is_step(number) else [tensor.double() for tensor in some] for number, some in enumerate(lists)]


def _check(
    check, function, label: str, lists, options: dict[str, Any], device: torch.device, *, may_lack: bool
) -> None:
    exact, found = _on(_wide(lists), HOST), _on(lists, device)
    function(*exact, **_on(options, HOST))
    try:
        function(*found, **_on(options, device))
    except NotImplementedError:
        if may_lack:
            raise EnvironmentLacks("The device has no fused kernel of this optimizer.") from None
        raise
    for position, (some, rights, before) in enumerate(zip(found, exact, lists, strict=True)):
        for number, (actual, right, old) in enumerate(zip(some, rights, before, strict=True)):
            what = f"{label}: list {position}, tensor {number}"
            near(check, what, actual, right, Near.TRAJECTORY)
            if actual.dtype in _NARROW:
                _check_movement(check, what, old.double(), actual.cpu().double(), right, unit_roundoff(actual.dtype))
            if position == 0 and right.numel():
                check.that(bool((right != old.double()).any()), f"{what} does not move in float64")


def _check_movement(check, what: str, old: torch.Tensor, found: torch.Tensor, right: torch.Tensor, unit: float) -> None:
    """Check that each element has moved as far as in float64, within a quarter of its way and some roundings.

    The bound of ``near`` is wide in 16 bits: it takes an element that has not moved for one that is rounded.
    """
    way = (right - old).abs()
    allowed = way / 4 + unit * (_ROUNDINGS * way.max() + 4 * right.abs())
    wrong = (found - right).abs() > allowed
    check.that(not bool(wrong.any()), f"{what}: {int(wrong.sum())} of {wrong.numel()} elements moved another way")


def _check_not_a_number(check, kernel: Kernel, function, device: torch.device) -> None:
    """Check that NaN in one list, or in the rate, moves into the lists that it moves into on the host.

    The first options have no maximum: whether it is NaN depends on the order of its operands.
    """
    options = kernel.options[0]
    usual = _lists(kernel, options, 1)
    rates = (_RATE, torch.tensor(_RATE), torch.tensor(torch.nan))
    for place, rate in itertools.product(range(2 + kernel.states), rates):
        if not usual[place]:
            continue
        given, changed = {**options, "lr": rate}, _on(usual, HOST)
        changed[place][0][0] = torch.nan
        due, found = _on(changed, HOST), _on(changed, device)
        function(*due, **_on(given, HOST))
        function(*found, **_on(given, device))
        for position, (some, rights) in enumerate(zip(found, due, strict=True)):
            for number, (actual, right) in enumerate(zip(some, rights, strict=True)):
                what = (
                    f"{kernel.name}({_shown(given)}) with NaN in list {place}: where list {position}, tensor {number}"
                )
                check.equal(actual.cpu().isnan(), right.isnan(), f"{what}, is NaN")


def _wrong(lists: list[list[torch.Tensor]]) -> Iterator[tuple[str, list[list[torch.Tensor]]]]:
    """Yield lists with gradients that have another dtype, or one that has another shape."""
    parameters, gradients, *rest = lists
    yield "gradients in int64", [parameters, [gradient.long() for gradient in gradients], *rest]
    yield "gradients in float64", [parameters, [gradient.double() for gradient in gradients], *rest]


def _refuses(function, lists, options: dict[str, Any]) -> bool:
    """Return whether the host refuses the call."""
    try:
        function(*_on(lists, HOST), **_on(options, HOST))
    except _REFUSALS:
        return True
    return False


def _check_refusal(check, function, label: str, lists, options: dict[str, Any], device: torch.device) -> None:
    """Check that a call that the host refuses is refused, or moves the parameters as the same numbers in float64 do."""
    if not _refuses(function, lists, options):
        return
    found, exact = _on(lists, device), _on(_wide(lists), HOST)
    try:
        function(*found, **_on(options, device))
        moved = [tensor.cpu() for tensor in found[0]]  # a device may refuse late
    except _REFUSALS:
        check.count += 1
        return
    function(*exact, **_on(options, HOST))
    for number, (actual, right) in enumerate(zip(moved, exact[0], strict=True)):
        what = f"{label}, which PyTorch refuses: parameter {number}"
        near(check, what, actual, right, Near.TRAJECTORY, by_device=True)

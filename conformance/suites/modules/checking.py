"""Comparison of one module with its float64 copy on the host: results, gradients and buffers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.budgets import load_table, unit_roundoff
from conformance.numerics.compare import plain, same_bits, without_nan
from conformance.numerics.nearness import METRIC, Near, bound_of
from conformance.numerics.trees import tensors
from conformance.process import last_call
from conformance.suites.operators.calls.execution import gradients_twice, reseed
from conformance.suites.operators.calls.passes import cotangents
from conformance.suites.operators.inputs.randomness import repeats
from conformance.suites.operators.judge.oracle import Intermediates
from conformance.suites.threads import on_a_thread

from . import database, laws
from .call import HOST, ModuleCall
from .layouts import (
    Change,
    Strides,
    arrange_weights,
    by_columns,
    has_layouts,
    in_pairs,
    layouts,
    other_numbers,
    repeat_rows,
    with_nan,
)

#: Seed of the cotangents, and of modules that draw.
_SEED = 11
#: Runs with changed intermediate results that show how far roundings reach.
_ROUGH = 2
#: Variant of a call with gradients in which the module is in eval().
EVALUATED = "in eval()"
#: Variant of a call with other numbers, for which a device may have prepared nothing on this thread.
ELSEWHERE = "other numbers, on another thread"
#: Modules of which a device may compute a layer, or a step, in one kernel that no operator's name reaches.
_FUSED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)
#: Variant of a call with ``ModuleCall.turned``.
TURNED = "gradients in another order in memory"


@functools.cache
def limits() -> SimpleNamespace:
    """Return the numbers of limits.toml."""
    return SimpleNamespace(**load_table(__file__, "limits.toml")["calls"])


@dataclass(frozen=True)
class Run:
    """Tensors that one call of a module made or changed, on the host, by name."""

    results: dict[str, torch.Tensor | None]
    gradients: dict[str, torch.Tensor | None]
    raw: list[torch.Tensor]
    inputs: list[torch.Tensor]
    drew: bool


@dataclass(frozen=True)
class References:
    """Runs on the host that judge a run: in float64, in its dtype, and in float64 with roundings of the dtype.

    The last two are made where they are needed.
    """

    exact: Run
    host: Callable[[], Run]
    rough: Callable[[], list[Run]]


def check_module(check: Any, name: str, device: torch.device, dtype: torch.dtype, *, training: bool) -> None:
    """Check a module in one dtype and mode; raise EnvironmentLacks if the installed torch lacks it."""
    try:
        chosen = database.calls(name, training=training, most=limits().plain)
    except KeyError:
        raise EnvironmentLacks(f"The installed torch has no calls of the module {name}.") from None
    refusals = [check_call(check, name, call, device, dtype, training=training) for call in chosen]
    if all(refusals):
        raise EnvironmentLacks(f"PyTorch's CPU computes no call of {name} in {dtype} ({refusals[0]}).")
    largest = max(chosen, key=lambda call: sum(tensor.numel() for tensor in call.tensors))
    made = largest.made(dtype)
    _check_layouts(check, name, largest, made, device, dtype, training=training)
    if dtype is torch.float32:
        given = (check, name, largest, device, dtype)
        on_a_thread(lambda: check_call(*given, training=training, variant=ELSEWHERE, change=other_numbers))
    if any(isinstance(part, _FUSED) for part in made.modules()):
        _check_nan(check, name, largest, device, dtype, training=training)
    if training and _is_recurrent(made):
        check_call(check, name, largest, device, dtype, training=True, variant=TURNED)
    if training:
        _check_second_backward(check, name, largest, device, dtype)
    if training and database.modes_differ(name):
        check_call(check, name, largest, device, dtype, training=True, variant=EVALUATED)
    for strides in in_pairs(made, largest, training=training) if dtype is torch.float32 else ():
        check_call(check, name, largest, device, dtype, training=training, variant=strides.name, strides=strides)


def _check_layouts(
    check: Any,
    name: str,
    call: ModuleCall,
    made: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    *,
    training: bool,
) -> None:
    """Check a call with other layouts of its inputs, and of its parameters."""
    for layout, change in layouts(call).items():
        check_call(check, name, call, device, dtype, training=training, variant=layout, change=change)
    if has_layouts(made):
        strides = Strides()
        check_call(check, name, call, device, dtype, training=training, variant=strides.name, strides=strides)


def check_call(
    check: Any,
    name: str,
    call: ModuleCall,
    device: torch.device,
    dtype: torch.dtype,
    *,
    training: bool,
    variant: str = "",
    change: Change | None = None,
    strides: Strides | None = None,
) -> Exception | None:
    """Compare one call, in train() and with gradients if ``training``, else in eval() without.

    ``variant`` names the layout that ``change`` gives to the inputs, or the ``strides`` of all, or is ``TURNED``,
    ``ELSEWHERE``, or ``EVALUATED``: eval() with gradients.
    Return the host's exception for a call that neither the device nor the host computes in this dtype and layout.
    """
    original, given = call.made(dtype).train(training and variant != EVALUATED), call.rounded(dtype)
    given = given.arranged(change) if change else given
    if strides is not None:
        repeat_rows(original, strides)
        given = given.arranged_in_turn(strides.inputs) if strides.inputs else given
    backward = by_columns if variant == TURNED else strides.gradients if strides is not None else None
    given = replace(given, backward=backward) if backward is not None else given
    label = f"{name}{f' ({call.label})' if call.label else ''}{f', {variant}' if variant else ''}"
    last_call.note(last_call.text_of(label), last_call.COPYING)
    module, on_host = _pair(original, device, dtype, strides, _format(given) if variant == "channels last" else None)
    last_call.note_step(last_call.ON_HOST)
    exact = host_run(copy.deepcopy(original), given.arranged(torch.Tensor.contiguous), HOST, torch.float64, training)
    host = functools.cache(lambda: host_run(on_host, given, HOST, dtype, training))
    if change is not None or strides is not None:
        try:
            host()  # first: a kernel that refuses a layout in a thread of autograd may end a device's process
        except Exception as refusal:
            return refusal
    try:
        if exact.drew:
            laws.check(check, label, SimpleNamespace(original=original, call=given, device=device, dtype=dtype))
            return None
        found = run(module, given, device, dtype, training)
    except AssertionError:
        raise
    except Exception:
        try:
            host()
        except Exception as refusal:  # the device need not do what the host does not
            return refusal
        raise
    _check_places(check, label, found, device)
    _check_inputs(check, label, found, exact, given)
    if variant == "channels last" and database.layout_is_kept(name):
        wide = host_run(copy.deepcopy(original), given, HOST, torch.float64, training)
        _check_format(check, label, found.raw, host().raw, wide.raw)
    rough = functools.cache(lambda: _rough_runs(original, given.arranged(torch.Tensor.contiguous), dtype, training))
    references = References(exact, host, rough)
    _compare(check, label, found, references, "results", bound_of(Near.FORWARD, dtype))
    _compare(check, label, found, references, "gradients", bound_of(Near.GRADIENTS, dtype))
    return None


def _pair(
    original: nn.Module, device: torch.device, dtype: torch.dtype, strides: Strides | None, order: Any
) -> tuple[nn.Module, nn.Module]:
    """Return copies of a module on the device and on the host, with a layout of parameters or a memory format."""
    module, on_host = copy.deepcopy(original).to(device=device, dtype=dtype), copy.deepcopy(original).to(dtype)
    if order is not None:
        module = module.to(memory_format=order)  # type: ignore[call-overload]  # torch's types lack it
    if strides is not None:
        arrange_weights(module, on_host, device, strides)
        arrange_weights(on_host, on_host, HOST, strides)
    return module, on_host


def _is_recurrent(module: nn.Module) -> bool:
    """Return whether a module has layers of which PyTorch's database has no operators."""
    return any(isinstance(part, nn.RNNBase) for part in module.modules())


def run(module: nn.Module, call: ModuleCall, device: torch.device, dtype: torch.dtype, training: bool) -> Run:
    """Call a module on the device under test."""
    last_call.note_step(last_call.ON_DEVICE)
    found = host_run(module, call, device, dtype, training)
    last_call.note_step(last_call.READING)
    return found


def host_run(module: nn.Module, call: ModuleCall, device: torch.device, dtype: torch.dtype, training: bool) -> Run:
    """Call a module, and run backward from seeded cotangents if ``training``."""
    inputs, named, wanted = call.on(device, dtype)
    reseed(_SEED, device)
    state = torch.get_rng_state()
    with torch.set_grad_enabled(training):
        result = module(*inputs, **named)
    drew = not torch.equal(state, torch.get_rng_state())
    raw = tensors(result)
    gradients: dict[str, torch.Tensor | None] = {}
    outputs = [tensor for tensor in raw if tensor.requires_grad]
    if training and outputs:
        torch.autograd.backward(outputs, cotangents(outputs, _SEED, call.backward))
        gradients = {f"input {i}": tensor.grad for i, tensor in enumerate(wanted)}
        gradients |= {key: parameter.grad for key, parameter in module.named_parameters()}
    results: dict[str, torch.Tensor | None] = {f"result {i}": plain(tensor) for i, tensor in enumerate(raw)}
    results |= {f"buffer {key}": plain(tensor) for key, tensor in module.named_buffers()}
    arrived = tensors([inputs, named])
    return Run(results, {key: None if g is None else plain(g) for key, g in gradients.items()}, raw, arrived, drew)


def _check_nan(
    check: Any, name: str, call: ModuleCall, device: torch.device, dtype: torch.dtype, *, training: bool
) -> None:
    """Check that NaN at the start of the inputs, and of each parameter in turn, arrives where it does on the host.

    A loop with scaled losses leaves out a step for it. A device may have NaN elsewhere, too, and so may the host: its
    products of matrices in 16 bits spread NaN to other rows on some processors, so float64 has to have it as well.
    """
    given = call.rounded(dtype)
    for place in ("", *(name for name, _ in call.made(dtype).named_parameters())):
        original, changed = call.made(dtype).train(training), given
        if place:
            original.get_parameter(place).data = with_nan(original.get_parameter(place).data)
        else:
            changed = given.arranged(with_nan)
        label = f"{name}, NaN at the start of {place or 'the inputs'}"
        last_call.note(last_call.text_of(label), last_call.ON_HOST)
        host = host_run(copy.deepcopy(original).to(dtype), changed, HOST, dtype, training)
        found = run(copy.deepcopy(original).to(device, dtype), changed, device, dtype, training)
        exact = functools.cache(
            partial(host_run, copy.deepcopy(original).double(), changed, HOST, torch.float64, training)
        )
        for part in ("results", "gradients"):
            for key, right in getattr(host, part).items():
                value = getattr(found, part)[key]
                if right is None or value is None:
                    continue
                lost = right.isnan() & ~value.isnan()
                if lost.any():
                    lost &= getattr(exact(), part)[key].isnan()
                check.that(
                    not lost.any(), f"{label}: {_named(part, key)} has {int(lost.sum())} numbers where it should be NaN"
                )


def _check_second_backward(check: Any, name: str, call: ModuleCall, device: torch.device, dtype: torch.dtype) -> None:
    """Check that a second backward over one graph gives the gradients of the first: it keeps what the forward saved."""
    original, given = call.made(dtype).train(), call.rounded(dtype)
    try:
        _backwards(copy.deepcopy(original), given, HOST, dtype)
    except Exception:  # the host's graph serves one backward
        return
    pairs = _backwards(copy.deepcopy(original), given, device, dtype)
    for order, (first, second) in enumerate(pairs):
        check.that(repeats([first], [second]), f"{name}: gradient {order} differs in a second backward over the graph")


def _backwards(module: nn.Module, call: ModuleCall, device: torch.device, dtype: torch.dtype) -> list[tuple[Any, Any]]:
    """Return the gradients of the parameters and inputs that one graph gives in two backwards."""
    inputs, named, wanted = call.on(device, dtype)
    module = module.to(device=device, dtype=dtype)
    outputs = [tensor for tensor in tensors(module(*inputs, **named)) if tensor.requires_grad]
    given = [*wanted, *module.parameters()]
    if not outputs or not given:
        return []
    found = gradients_twice(outputs, given, cotangents(outputs, _SEED))
    return list(zip(found[: len(given)], found[len(given) :], strict=True))


def _check_places(check: Any, label: str, found: Run, device: torch.device) -> None:
    for tensor in found.raw:
        check.that(
            tensor.device.type == device.type, f"{label}: the result is on {tensor.device}, not on {device.type}"
        )


def _check_inputs(check: Any, label: str, found: Run, exact: Run, given: ModuleCall) -> None:
    """Check that the device left its inputs as they were, if the host did."""
    before = tensors([*given.on(HOST, torch.float64)[:2]])
    for i, (after, host, old) in enumerate(zip(found.inputs, exact.inputs, before, strict=True)):
        if same_bits(plain(host), plain(old)):
            # Conversions may change the bits of a NaN.
            kept = torch.equal(*(without_nan(plain(each).double(), 0.0) for each in (after, old)))
            check.that(kept, f"{label}: input {i} was changed by the call")


def _check_format(
    check: Any, label: str, found: list[torch.Tensor], host: list[torch.Tensor], wide: list[torch.Tensor]
) -> None:
    """Check that results have the channels-last format where PyTorch's CPU gives it in this dtype and in float64."""
    for actual, *references in zip(found, host, wide, strict=True):
        wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(actual.dim())
        if wanted is not None and all(each.is_contiguous(memory_format=wanted) for each in references):
            kept = actual.is_contiguous(memory_format=wanted)
            check.that(kept, f"{label}: the result is not in the channels-last format of input and weights")


def _rough_runs(original: nn.Module, call: ModuleCall, dtype: torch.dtype, training: bool) -> list[Run]:
    """Return runs in float64 whose every result is changed by up to twice the unit roundoff of ``dtype``."""
    found = []
    for seed in range(_ROUGH):
        module = copy.deepcopy(original)
        with Intermediates(seed, inside=True, step=unit_roundoff(dtype)):
            found.append(host_run(module, call, HOST, torch.float64, training))
    return found


def _compare(check: Any, label: str, found: Run, references: References, part: str, bound: float) -> None:
    """Compare the tensors of one part of a run."""
    actual, expected = getattr(found, part), getattr(references.exact, part)
    check.that(actual.keys() == expected.keys(), f"{label}: {part} {sorted(actual)}, expected {sorted(expected)}")
    whole = max((_size(value) for value in expected.values() if value is not None), default=0.0)
    for name, right in expected.items():
        value, what = actual[name], f"{label}: {_named(part, name)}"
        if right is None or value is None:
            check.that(right is value, f"{what} is {'missing' if value is None else 'there'}, but not on the host")
            continue
        check.that(value.shape == right.shape, f"{what} has shape {tuple(value.shape)}, not {tuple(right.shape)}")
        if not right.is_floating_point():
            check.equal(value, right, what)
            continue
        value = check.result(value)
        scale = _size(right)
        scale = whole if scale <= limits().vanishing * whole else scale
        error, allowed = _error(value, right, scale), bound
        if not error <= bound:
            allowed = max(bound, limits().host * _error_of(lambda: [references.host()], part, name, right, scale))
            if not error <= allowed:
                allowed = max(allowed, limits().rounding * _error_of(references.rough, part, name, right, scale))
            check.that(error <= allowed, f"{what} is off by {error:.3g} of its largest element, allowed {allowed:.3g}")
        check.that(True, what)
        check.metric(METRIC, max(float(check.metrics.get(METRIC, 0.0)), round(error / allowed, 6)))


def _named(part: str, name: str) -> str:
    return f"the gradient of {name}" if part == "gradients" else name


def _error_of(runs: Callable[[], list[Run]], part: str, name: str, right: torch.Tensor, scale: float) -> float:
    """Return the largest error of some runs on the host; 0 if it cannot make them."""
    try:
        values = [getattr(run, part)[name] for run in runs()]
    except Exception:  # the bound alone judges what the host cannot compute
        return 0.0
    return max((_error(value, right, scale) for value in values if value is not None), default=0.0)


def _size(value: torch.Tensor) -> float:
    """Return the largest finite magnitude."""
    if not value.is_floating_point() or not value.numel():
        return 0.0
    return float(value.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _error(value: torch.Tensor, right: torch.Tensor, scale: float) -> float:
    """Return the largest error over ``scale``; infinity if values that are not finite differ."""
    if not right.numel():
        return 0.0
    wide, finite = value.double(), right.isfinite()
    if not same_bits(without_nan(wide[~finite], 0.0), without_nan(right[~finite], 0.0)):
        return float("inf")
    worst = float((wide - right)[finite].abs().max()) if finite.any() else 0.0
    return worst / scale if scale else worst


def _format(call: ModuleCall) -> torch.memory_format:
    has_volume = any(tensor.dim() == 5 for tensor in call.tensors)
    return torch.channels_last_3d if has_volume else torch.channels_last

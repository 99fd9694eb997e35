"""Checks of the families: the bodies behind test_families.py."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from conformance.accelerators.capabilities import DETERMINISTIC, RNG_STATE
from conformance.numerics.budgets import load_table
from conformance.suites.shared_bodies import deterministic

from . import layers
from .comparing import Bounds, Tensors, bounds_of, check_same_bits, check_series, relative_error, within
from .families import DROPOUT, Family
from .family_loop import (
    COMPARED_STEPS,
    RESTART_STEPS,
    TIMED_STEPS,
    FamilyTrainer,
    groups_experts,
    host_run_of,
    micro_batches,
    model_on,
    placed,
    reference_of,
)
from .loop import HOST, ORACLE, SCHEMES, RunDevice, Scheme, Trajectory, exact, gradients_of, weights_of

LIMITS = load_table(__file__, "bounds.toml")["families"]


@contextlib.contextmanager
def naming_layer(
    family: Family, run_device: RunDevice, scheme: Scheme, *, training: bool = True, traced: bool = False
) -> Iterator[None]:
    """Add the first wrong layer to the message of a comparison that fails inside."""
    try:
        yield
    except AssertionError as error:
        if type(error) is not AssertionError or not (
            found := wrong_layer(family, run_device, scheme, training, traced)
        ):
            raise
        raise AssertionError(f"{error}. {found}") from error


def wrong_layer(family: Family, run_device: RunDevice, scheme: Scheme, training: bool, traced: bool = False) -> str:
    """Return a sentence about the first layer whose output leaves its budget in a new run, or an empty one."""
    bounds = bounds_of(_dtype_of(scheme))
    sides = [(run_device, scheme), (HOST, scheme), (HOST, ORACLE)]
    device, host, oracle = (
        model_on(family, place, kind.storage, traced=traced).train(training) for place, kind in sides
    )
    batch = traced_batch(family) if traced else reference_batch(family)

    def run(model: nn.Module) -> torch.Tensor | None:
        place = run_device if model is device else HOST
        kind = ORACLE if model is oracle else scheme
        inputs, targets = placed(batch, place, kind.storage)
        with autocast(place, kind):
            output = model(**inputs)
        return family.kind.loss(output, targets) if training else None

    return layers.first_wrong(device, host, oracle, run, bounds.logits, bounds.host)


def _dtype_of(scheme: Scheme) -> str:
    return str(scheme.autocast or scheme.storage).removeprefix("torch.")


def autocast(run_device: RunDevice, scheme: Scheme) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a scheme computes."""
    if scheme.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(run_device.device.type, dtype=scheme.autocast)


def reference_batch(family: Family) -> Any:
    """Return the first batch of the family's data, on the host."""
    from .inputs import batches_of

    return batches_of(family.data, COMPARED_STEPS)[0]


def traced_batch(family: Family) -> Any:
    """Return the first batch of the family's data, on the host, in rows of the length that its traced cases have."""
    inputs, targets = reference_batch(family)
    if family.traced_length is None:
        return inputs, targets
    short = slice(family.traced_length)
    return {name: part[:, short].contiguous() for name, part in inputs.items()}, targets[:, short].contiguous()


def check_train(check: Any, family: Family, run_device: RunDevice, dtype: str) -> FamilyTrainer:
    """Compare gradients, losses, norm and weights of some steps with the oracle's; return the trainer."""
    oracle, bounds = reference_of(family.name).run, bounds_of(dtype)
    host, host_weights = host_run_of(family.name, dtype)
    with naming_layer(family, run_device, SCHEMES[dtype]):
        trainer = FamilyTrainer(family, run_device, SCHEMES[dtype])
        run = trainer.run(COMPARED_STEPS)
        losses = (run.losses, host.losses, oracle.losses)
        loss_bound = bounds.loss * LIMITS["loss"].get(family.name, 1.0)
        errors = {
            "gradient_error": check_gradients(check, family, dtype, run.gradients, host.gradients, oracle.gradients),
            "loss_error": check_series(check, "the loss", *losses, loss_bound, bounds),
            "gradient_norm_error": _check_norm(check, run, host, oracle, bounds),
            "parameter_error": check_updates(check, family, dtype, weights_of(trainer.model), host_weights),
        }
        if family.routed:
            errors["expert_flips"] = check_routing(check, family, run_device, dtype)
    for quantity, value in errors.items():
        check.metric(quantity, value)
    return trainer


def check_gradients(check: Any, family: Family, dtype: str, device: Tensors, host: Tensors, oracle: Tensors) -> float:
    """Compare all gradients of one step; return the largest error of those that are not routed."""
    bounds, worst = bounds_of(dtype), 0.0
    missing = sorted(set(oracle) - set(device))
    check.that(not missing, f"parameters without a gradient: {', '.join(missing)}")
    floor = LIMITS["floor"] * max(float(gradient.abs().max()) for gradient in oracle.values())
    for name, wanted in oracle.items():
        largest = max(float(wanted.abs().max()), floor)
        error, host_error = (float((run[name] - wanted).abs().max()) / largest for run in (device, host))
        bound = LIMITS["routed"][dtype] if family.is_routed(name) else bounds.gradients
        within(check, f"the gradient of {name}", error, bound, host_error, bounds)
        worst = worst if family.is_routed(name) else max(worst, error)
    return worst


def _check_norm(check: Any, run: Trajectory, host: Trajectory, oracle: Trajectory, bounds: Bounds) -> float:
    """Compare the gradient norm of the first step, where all runs have the same weights."""
    wanted = oracle.gradient_norms[0]
    error, host_error = (abs(side.gradient_norms[0] - wanted) / wanted for side in (run, host))
    within(check, "the gradient norm of the first step", error, bounds.gradient_norm, host_error, bounds)
    return error


def check_updates(check: Any, family: Family, dtype: str, device: Tensors, host: Tensors) -> float:
    """Compare every parameter after the steps; return the largest error over the way that the parameter has gone.

    A weight of 1.0 stores a small way only up to its own rounding, which is allowed besides.
    """
    reference, bounds, worst = reference_of(family.name), bounds_of(dtype), 0.0
    gradients = reference.run.gradients
    silent = LIMITS["silent"] * max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, wanted in reference.weights.items():
        if name not in gradients or float(gradients[name].abs().max()) <= silent:
            continue
        way = float((wanted - reference.initial[name]).norm())
        error, host_error = (float((side[name] - wanted).norm()) / way for side in (device, host))
        stored = 2.0**-24 * float(wanted.norm()) * math.sqrt(COMPARED_STEPS) / way
        bound = LIMITS["routed"][dtype] if family.is_routed(name) else bounds.parameters
        within(check, f"the update of {name}", error, bound + stored, host_error, bounds)
        worst = max(worst, error)
    return worst


def check_routing(check: Any, family: Family, run_device: RunDevice, dtype: str) -> float:
    """Check that nearly all tokens go to the oracle's experts, and none is dropped; return the share of others."""
    chosen = _experts(family, run_device, SCHEMES[dtype])
    wanted = _experts(family, HOST, ORACLE)
    check.equal([part.shape for part in chosen], [part.shape for part in wanted], "the number of chosen experts")
    pairs = [(left.sort(-1).values, right.sort(-1).values) for left, right in zip(chosen, wanted, strict=True)]
    flips = sum(int((left != right).sum()) for left, right in pairs) / sum(right.numel() for _, right in pairs)
    allowed = LIMITS["flips"][dtype]
    check.that(flips <= allowed, f"{flips:.1%} of the choices of experts are not the oracle's, allowed {allowed:.1%}")
    return flips


@torch.no_grad()
def _experts(family: Family, run_device: RunDevice, scheme: Scheme) -> list[torch.Tensor]:
    """Return the experts that each router chooses for each token of the first batch."""
    model, chosen = model_on(family, run_device, scheme.storage), []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter") or type(module).__name__.endswith("TopkRouter"):
            module.register_forward_hook(lambda _, __, output: chosen.append(_indices(output)))
    with autocast(run_device, scheme):
        model(**placed(reference_batch(family), run_device, scheme.storage)[0])
    return chosen


def _indices(output: Any) -> torch.Tensor:
    return next(part for part in output if not part.is_floating_point()).cpu()


def check_rerun(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Check that two runs from the same weights and data have the same bits."""
    with deterministic():
        runs = [_bits_of(FamilyTrainer(family, run_device, SCHEMES[dtype])) for _ in range(2)]

    check_same_bits(check, runs[1], runs[0], "the second run")
    _check_trained(check, family, runs[0])


def _check_trained(check: Any, family: Family, found: Tensors) -> None:
    """Check that there were losses, and that the parameters changed; equal bits of zeros would prove nothing."""
    check.that(found["losses"].all(), "a loss is 0")
    initial = weights_of(model_on(family, HOST, torch.float32))
    still = [name for name, value in initial.items() if name in found and torch.equal(found[name], value)]
    check.that(len(still) < len(initial) / 2, f"{len(still)} of {len(initial)} parameters stand still in training")


def _bits_of(trainer: FamilyTrainer) -> dict[str, torch.Tensor]:
    run = trainer.run(RESTART_STEPS)
    buffers = {name: exact(value) for name, value in trainer.model.named_buffers()}
    return {**weights_of(trainer.model), **buffers, "losses": torch.tensor(run.losses, dtype=torch.float64)}


def check_restart(
    check: Any, family: Family, run_device: RunDevice, dtype: str, declaration: Any, folder: Path
) -> None:
    """Check that training from a saved and loaded state continues as training without a break.

    The bits have to be equal where the accelerator declares that it is deterministic, and otherwise the bounds hold.
    """
    dropout = DROPOUT if family.dropout and declaration.supports(RNG_STATE.cell) else 0.0
    exactly = declaration.supports(DETERMINISTIC.cell)
    with deterministic() if exactly else contextlib.nullcontext():
        whole, resumed = _with_and_without_break(family, run_device, dtype, dropout, folder)
    _check_trained(check, family, whole)
    if exactly:
        check_same_bits(check, resumed, whole, "after the restart")
        return
    for name, expected in whole.items():
        error, allowed = relative_error(resumed[name].double(), expected.double()), bounds_of(dtype).parameters
        check.that(error <= allowed, f"after the restart {name} is off by {error:.3g}, allowed {allowed:.3g}")


def _with_and_without_break(
    family: Family, run_device: RunDevice, dtype: str, dropout: float, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    first = FamilyTrainer(family, run_device, SCHEMES[dtype], dropout)
    first.run(RESTART_STEPS)
    torch.save(first.state(), folder / "checkpoint.pt")
    whole = _bits_of(first)

    second = FamilyTrainer(family, run_device, SCHEMES[dtype], dropout)
    second.restore(torch.load(folder / "checkpoint.pt", map_location=run_device.device, weights_only=True))
    return whole, _bits_of(second)


def one_backward(trainer: FamilyTrainer) -> dict[str, torch.Tensor]:
    """Return the gradients of the first batch, unscaled."""
    trainer.model.zero_grad(set_to_none=True)
    batch = traced_batch(trainer.family) if trainer.traced else trainer.task.batches[0]
    trainer.backward(*trainer.placed(batch))
    scale = trainer.scheme.loss_scale
    return {name: gradient / scale for name, gradient in gradients_of(trainer.model).items()}


def check_accumulation(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Check that gradients of two micro-batches add up to those that the oracle adds outside of autograd."""
    sides = [(run_device, SCHEMES[dtype]), (HOST, SCHEMES[dtype])]
    with naming_layer(family, run_device, SCHEMES[dtype]):
        found, host = (one_backward(FamilyTrainer(family, place, scheme, micro=2)) for place, scheme in sides)
        check.metric("gradient_error", check_gradients(check, family, dtype, found, host, summed_gradients(family, 2)))


@functools.cache
def summed_gradients(family: Family, micro: int) -> dict[str, torch.Tensor]:
    """Return the float64 sum of the weighted gradients of micro-batches, each from a model of its own."""
    total: dict[str, torch.Tensor] = {}
    from .inputs import IGNORED

    inputs, targets = placed(reference_batch(family), HOST, torch.float64)
    for part, wanted in micro_batches(inputs, targets, micro):
        trainer = FamilyTrainer(family, HOST, ORACLE)
        share = float((wanted != IGNORED).sum() / (targets != IGNORED).sum())
        trainer.loss(part, wanted).backward()
        for name, gradient in gradients_of(trainer.model).items():
            total[name] = total.get(name, 0.0) + share * gradient
    return total


def check_checkpointing(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Check that recomputed activations give the oracle's gradients, and that the layers do run twice."""
    scheme = SCHEMES[dtype]
    with naming_layer(family, run_device, scheme):
        trainer, plain = (FamilyTrainer(family, run_device, scheme) for _ in range(2))
        _enable_checkpointing(trainer.model)
        calls = [_count_calls(family, side.model) for side in (trainer, plain)]
        found, without = one_backward(trainer), one_backward(plain)
        check.that(calls[1].total() > 0, f"no module of a {family.repeated} was called")
        once = [name for name, number in calls[1].items() if calls[0][name] != 2 * number]
        check.that(not once, f"with checkpointing these layers do not run twice: {', '.join(once)}")
        host, oracle = host_run_of(family.name, dtype)[0].gradients, reference_of(family.name).run.gradients
        for gradients in (without, found):
            check_gradients(check, family, dtype, gradients, host, oracle)


def _enable_checkpointing(model: nn.Module) -> None:
    """Let the layers of a model recompute their activations; transformers renamed the method."""
    renamed = hasattr(model, "activation_checkpointing_enable")
    (model.activation_checkpointing_enable if renamed else model.gradient_checkpointing_enable)()


def _count_calls(family: Family, model: nn.Module) -> Counter[str]:
    """Return a counter of the calls of the first module in each repeated layer. Hooks of the layer itself run once."""
    calls: Counter[str] = Counter()
    first = {
        name: next(part for part in layer.modules() if not list(part.children()))
        for name, layer in model.named_modules()
        if type(layer).__name__ == family.repeated
    }
    for name, part in first.items():
        part.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    return calls


def check_forward(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Compare the output of a model with all weights in ``dtype`` with that of the rounded weights in float64."""
    kind, bounds = getattr(torch, dtype), bounds_of(dtype)
    with naming_layer(family, run_device, Scheme(kind), training=False):
        found, host = (output_of(family, place, kind) for place in (run_device, HOST))
        wanted = output_of(family, HOST, torch.float64, rounded=kind)
        check.equal(found.shape, wanted.shape, "the shape of the output")
        error, host_error = relative_error(found, wanted), relative_error(host, wanted)
        within(check, "the output", error, bounds.logits, host_error, bounds)
        check.that(bool(wanted.std() > 0), "the output is constant")
    check.metric("output_error", error)


@torch.no_grad()
def output_of(family: Family, run_device: RunDevice, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Any:
    """Return the output of the first batch, float64 on the host; the oracle's weights are ``rounded`` first."""
    model = model_on(family, run_device, dtype)
    if rounded is not None:
        model.to(rounded).to(dtype)
    inputs, _ = placed(reference_batch(family), run_device, rounded or dtype)
    inputs = {name: part.to(dtype) if part.is_floating_point() else part for name, part in inputs.items()}
    return exact(family.kind.logits(model(**inputs)))


def check_autocast(check: Any, family: Family, run_device: RunDevice, dtype: str) -> None:
    """Check that autocast computes products in ``dtype``, keeps float32 weights and gradients, and stays in bounds."""
    scheme, kind = SCHEMES[dtype], getattr(torch, dtype)
    with naming_layer(family, run_device, scheme):
        trainer = FamilyTrainer(family, run_device, scheme)
        seen: set[torch.dtype] = set()
        for module in trainer.model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
        gradients = one_backward(trainer)
        kinds = {parameter.grad.dtype for parameter in trainer.model.parameters() if parameter.grad is not None}
        check.equal(kinds, {torch.float32}, "the dtypes of the gradients under autocast")
        check.that(kind in seen or not seen, f"no linear layer or convolution gives {dtype} under autocast")
        host = host_run_of(family.name, dtype)[0].gradients
        check_gradients(check, family, dtype, gradients, host, reference_of(family.name).run.gradients)
        check.that(trainer.autocast_is_off(), "autocast is still on after its block")


def timed(trainer: FamilyTrainer) -> Trajectory:
    """Return the record of more steps, which are compared with nothing."""
    return trainer.run(TIMED_STEPS)


@functools.cache
def flops_of(family: Family) -> int:
    """Return the operations in products and convolutions of a training step, counted on the host."""
    from torch.utils.flop_counter import FlopCounterMode

    trainer = FamilyTrainer(family, HOST, SCHEMES["float32"])
    with FlopCounterMode(display=False) as counter:
        one_backward(trainer)
    return counter.get_total_flops()


def check_compiled(check: Any, family: Family, run_device: RunDevice, dtype: str, backend: Any) -> None:
    """Compare the gradients of a compiled model with the oracle's, and count its graphs.

    The model has one layer of each kind: a compiler takes a second one as long as the first, and it shows no more.
    """
    sides = [(run_device, SCHEMES[dtype]), (HOST, SCHEMES[dtype]), (HOST, ORACLE)]
    with naming_layer(family, run_device, SCHEMES[dtype], traced=True):
        trainer, *others = (FamilyTrainer(family, place, scheme, traced=True) for place, scheme in sides)
        trainer.model.compile(backend=backend)
        found = one_backward(trainer)
        apart = family.routed and not groups_experts(run_device.device.type)
        allowed, graphs = family.graphs_apart if apart else family.graphs, len(backend.nodes)
        check.that(1 <= graphs <= allowed, f"the model is compiled in {graphs} graphs, allowed {allowed}")
        check.that(all(backend.nodes), "a graph is empty")
        host, oracle = map(one_backward, others)
        check.metric("gradient_error", check_gradients(check, family, dtype, found, host, oracle))
    check.metric("graphs", len(backend.nodes))

"""Checks of every training workload: the bodies behind test_gpt.py and test_vit.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from conformance.accelerators.capabilities import DETERMINISTIC, RNG_STATE
from conformance.suites.shared_bodies import deterministic

from . import tasks
from .comparing import bounds_of, check_gradients, check_parameters, check_same_bits, check_series
from .loop import HOST, SCHEMES, RunDevice, Trainer, Trajectory, weights_of
from .measuring import COLD_STEPS, MemoryCounters, report_speed


def check_against_host(check: Any, name: str, run_device: RunDevice, dtype: str) -> tuple[Trainer, Trajectory]:
    """Train until the model has learned, compare each step with the host's; return the trainer and its whole run."""
    reference, task, bounds = tasks.reference(name), tasks.task_named(name), bounds_of(dtype)
    device, host = Trainer(task, run_device, SCHEMES[dtype]), Trainer(task, HOST, SCHEMES[dtype])
    run, host_run, oracle = device.run(tasks.COMPARED_STEPS), host.run(tasks.COMPARED_STEPS), reference.oracle

    errors = {
        "gradient_error": check_gradients(check, run.gradients, host_run.gradients, oracle.gradients, bounds),
        "loss_error": check_series(
            check, "the loss", run.losses, host_run.losses, oracle.losses, bounds.loss, bounds
        ),
        "gradient_norm_error": check_series(
            check, "the gradient norm", run.gradient_norms, host_run.gradient_norms, oracle.gradient_norms,
            bounds.gradient_norm, bounds,
        ),
        "parameter_error": check_parameters(
            check, weights_of(device.model), weights_of(host.model), reference.oracle_weights, reference.initial, bounds
        ),
    }  # fmt: skip

    # Rounding differences grow with the steps: from here on only the loss is bounded, by a wider bound.
    rest = device.run(tasks.LEARNING_STEPS - tasks.COMPARED_STEPS)
    losses = run.losses + rest.losses
    errors["drift"] = check_series(
        check, "the loss (against the host in float32)", losses, reference.whole.losses, reference.whole.losses,
        bounds.drift, bounds,
    )  # fmt: skip
    for quantity, value in errors.items():
        check.metric(quantity, value)
    return device, Trajectory(losses, run.gradient_norms + rest.gradient_norms, run.seconds + rest.seconds)


def check_memory_returns(check: Any, name: str, run_device: RunDevice, dtype: str, memory: MemoryCounters) -> None:
    """Check that a second run frees all its memory; the first run may have loaded libraries that keep some."""
    if memory.counts or memory.peaks:
        memory.begin()
        Trainer(tasks.task_named(name), run_device, SCHEMES[dtype]).run(2)
        memory.check_returned(check)
    memory.report_peak(check)


def report_training(check: Any, name: str, run: Trajectory, unit: str) -> None:
    """Report the speed (``unit`` per second) and the final loss of a run."""
    report_speed(check, run.seconds[COLD_STEPS:], tasks.task_named(name).items_per_step, unit)
    check.metric("final_loss", run.losses[-1])


def check_rerun(check: Any, name: str, run_device: RunDevice, dtype: str) -> None:
    """Check that two runs from the same weights and data have the same bits."""
    with deterministic():
        runs = [_bits_of(Trainer(tasks.task_named(name), run_device, SCHEMES[dtype])) for _ in range(2)]

    check_same_bits(check, runs[1], runs[0], "the second run")
    check.that(all(value.any() for value in runs[0].values()), "a parameter, or every loss, is 0 after training")


def _bits_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    run = trainer.run(tasks.RESTART_STEPS)
    return {**weights_of(trainer.model), "losses": torch.tensor(run.losses, dtype=torch.float64)}


def check_restart(check: Any, name: str, run_device: RunDevice, dtype: str, declaration: Any, folder: Path) -> None:
    """Check that training from a saved and loaded state has the same bits as training without a break.

    If the generator's state can be saved, the model has dropout, which the restart must continue. If the accelerator
    does not declare that it is deterministic, the bounds of the dtype apply instead of equal bits.
    """
    dropout = 0.1 if declaration.supports(RNG_STATE.cell) else 0.0
    if not declaration.supports(DETERMINISTIC.cell):
        whole, resumed = _with_and_without_break(name, run_device, dtype, dropout, folder)
        for parameter, expected in whole.items():
            error = float((resumed[parameter] - expected).norm() / expected.norm())
            allowed = bounds_of(dtype).parameters
            check.that(error <= allowed, f"after the restart {parameter} is off by {error:.3g}, allowed {allowed:.3g}")
        return
    with deterministic():
        whole, resumed = _with_and_without_break(name, run_device, dtype, dropout, folder)
    check_same_bits(check, resumed, whole, "after the restart")


def _with_and_without_break(
    name: str, run_device: RunDevice, dtype: str, dropout: float, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    first = Trainer(tasks.task_named(name), run_device, SCHEMES[dtype], dropout)
    first.run(tasks.RESTART_STEPS)
    torch.save(first.state(), folder / "checkpoint.pt")
    whole = _bits_of(first)

    second = Trainer(tasks.task_named(name), run_device, SCHEMES[dtype], dropout)
    second.restore(torch.load(folder / "checkpoint.pt", map_location=run_device.device, weights_only=True))
    return whole, _bits_of(second)

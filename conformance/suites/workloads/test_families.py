"""Cases of the families: models of transformers and two of our own train, resume and repeat, as on the host."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DETERMINISTIC
from conformance.plan.case import cases

from . import family_checks as checks
from .families import families
from .loop import RunDevice
from .measuring import MemoryCounters, matmul_rate, report_family_speed
from .planned import planned_families


def _family(case):
    return families()[case.id.split(".")[1]]


@cases(planned_families("train", "training"))
def test_train(accelerator, device, declaration, case, check):
    """A model trains with the gradients, losses and weights of float64 on the host."""
    family, run_device = _family(case), RunDevice(device, accelerator)
    memory = MemoryCounters(accelerator, declaration)
    memory.begin()

    trainer = checks.check_train(check, family, run_device, case.dtype)

    rate = matmul_rate(run_device, getattr(torch, case.dtype))
    report_family_speed(check, checks.timed(trainer), family.kind, checks.flops_of(family), rate)
    memory.report_peak(check)


@cases(planned_families("restart", "training"))
def test_restart(accelerator, device, declaration, case, check, tmp_path):
    """Training of a model continues from a checkpoint as if it had not been interrupted."""
    run_device = RunDevice(device, accelerator)
    checks.check_restart(check, _family(case), run_device, case.dtype, declaration, tmp_path)


@cases(planned_families("rerun", "training", DETERMINISTIC))
def test_rerun(accelerator, device, case, check):
    """Two runs of the same training of a model give the same bits."""
    checks.check_rerun(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(planned_families("accumulation", "training"))
def test_accumulation(accelerator, device, case, check):
    """Gradients of micro-batches add up to the sum that float64 gives on the host."""
    checks.check_accumulation(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(planned_families("checkpointing", "training", having=lambda family: bool(family.repeated)))
def test_checkpointing(accelerator, device, case, check):
    """Recomputed activations give the same gradients, and the layers do run twice."""
    checks.check_checkpointing(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(planned_families("autocast", "training", dtypes=("bfloat16", "float16")))
def test_autocast(accelerator, device, case, check):
    """Autocast computes products in 16 bits and keeps weights and gradients in float32."""
    checks.check_autocast(check, _family(case), RunDevice(device, accelerator), case.dtype)


@cases(planned_families("forward", "inference"))
def test_forward(accelerator, device, case, check):
    """A model with all weights in one dtype gives the output of the same weights in float64 on the host."""
    checks.check_forward(check, _family(case), RunDevice(device, accelerator), case.dtype)

"""Cases for a vision transformer on scikit-learn's handwritten digits."""

from __future__ import annotations

import time

import torch

from conformance.accelerators.capabilities import DETERMINISTIC
from conformance.plan.case import cases

from . import tasks, training
from .comparing import bounds_of, check_choices, learned, relative_error, within
from .data import digits
from .loop import HOST, RunDevice, exact
from .measuring import MemoryCounters
from .models.vit import ViT
from .planned import planned


@cases(planned("vit.train", "training"))
def test_train(accelerator, device, declaration, case, check):
    """The vision transformer learns, with the host's gradients, losses, gradient norms and weights."""
    run_device = RunDevice(device, accelerator)

    trainer, run = training.check_against_host(check, "vit", run_device, case.dtype)
    accuracy = _accuracy(_logits(trainer.model.eval(), run_device, torch.float32))

    _check_learned(check, accuracy)
    del trainer  # it holds device memory that the next check would count
    training.check_memory_returns(check, "vit", run_device, case.dtype, MemoryCounters(accelerator, declaration))
    training.report_training(check, "vit", run, "samples")
    check.metric("accuracy", accuracy)


@cases(planned("vit.rerun", "training", DETERMINISTIC))
def test_rerun(accelerator, device, case, check):
    """Two runs of the same training of the vision transformer give the same bits."""
    training.check_rerun(check, "vit", RunDevice(device, accelerator), case.dtype)


@cases(planned("vit.restart", "training"))
def test_restart(accelerator, device, declaration, case, check, tmp_path):
    """Training of the vision transformer continues from a checkpoint as if it had not been interrupted."""
    run_device = RunDevice(device, accelerator)
    training.check_restart(check, "vit", run_device, case.dtype, declaration, tmp_path)


@cases(planned("vit.evaluate", "inference"))
def test_evaluate(accelerator, device, case, check):
    """A trained vision transformer recognises the same digits as on the host."""
    run_device, dtype, bounds = RunDevice(device, accelerator), getattr(torch, case.dtype), bounds_of(case.dtype)
    oracle = _learned_model(HOST, dtype).double()

    model = _learned_model(run_device, dtype)
    _logits(model, run_device, dtype)  # warm up: the first call may compile
    started = time.perf_counter()
    logits = _logits(model, run_device, dtype)
    seconds = time.perf_counter() - started
    host_logits = _logits(_learned_model(HOST, dtype), HOST, dtype)

    exact_logits = _logits(oracle, HOST, torch.float64, rounded=dtype)
    error, host_error = (relative_error(run, exact_logits) for run in (logits, host_logits))
    within(check, "the logits", error, bounds.logits, host_error, bounds)
    check.metric("near_ties", check_choices(check, logits.argmax(-1), exact_logits, bounds.near_tie))
    _check_learned(check, _accuracy(logits))
    check.metric("logit_error", error)
    check.metric("accuracy", _accuracy(logits))
    check.metric("samples_per_s", len(logits) / seconds)


def _learned_model(run_device, dtype):
    model = ViT(tasks.VIT_SHAPE)
    model.load_state_dict(tasks.reference("vit").learned)
    return model.to(run_device.device, dtype).eval()


@torch.no_grad()
def _logits(model, run_device, dtype, rounded=None):
    """Return the logits of the held-out digits, float64 on the host.

    ``rounded`` is the dtype to which the oracle's images are rounded first, so that all models get equal inputs.
    """
    images = digits().held_out[0].to(rounded or dtype).to(dtype)
    return exact(model(images.to(run_device.device)))


def _accuracy(logits):
    return float((logits.argmax(-1) == digits().held_out[1]).to(torch.float64).mean())


def _check_learned(check, accuracy):
    bound = learned("vit", "accuracy")
    check.that(accuracy >= bound, f"the model has not learned: accuracy {accuracy:.3f}, must be at least {bound}")

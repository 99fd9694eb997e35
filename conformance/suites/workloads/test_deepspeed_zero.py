"""Cases of DeepSpeed's engine: a llama under every stage of ZeRO trains as in one process."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, DTYPE, Cell
from conformance.plan.case import cases

from .parallel import models
from .parallel.deepspeed_engine import IMPORTS, LOSS_SCALE, config_of, start, weights_of
from .parallel.planned import check_mean_losses, planned

RANK_IMPORTS = (*models.IMPORTS, *IMPORTS)
STAGES, WORLDS = ("0", "1", "2", "3"), (1, 2, 4)
DTYPES = ("float32", "bfloat16", "float16")


def _needs(dtype):
    needs = (COMM, *(COMM_DTYPE.on(name) for name in {"float32": 0, dtype: 0}))
    # A claim of a dtype for workloads means autocast or float32. DeepSpeed computes in the dtype itself.
    return (*needs, DTYPE.on(dtype), Cell("workloads.llama", "float32", "training"))


def zero_cases():
    """Return a case for each stage, dtype and number of ranks, such as ``workloads.deepspeed.zero[3-float32-2]``."""
    return [
        planned("deepspeed.zero", (("stage", stage), ("dtype", dtype), ("world", str(ranks))), _needs(dtype), ranks)
        for stage in STAGES
        for dtype in DTYPES
        for ranks in WORLDS
    ]


def overflow_cases():
    """Return a case for each stage, such as ``workloads.deepspeed.overflow[2]``: float16 on two ranks."""
    return [planned("deepspeed.overflow", (("stage", stage),), _needs("float16"), 2) for stage in STAGES]


def step_cases():
    """Return a case for each way to make a step, and stage, such as ``workloads.deepspeed.micro_steps[1]``."""
    return [
        planned(f"deepspeed.{way}", (("stage", stage),), _needs("float32"), 2)
        for way, stages in (("micro_steps", "0123"), ("two_backward", "123"), ("offload", "23"))
        for stage in stages
    ]


def _mine(step, rank, world_size, device):
    return [tensor.chunk(world_size)[rank].to(device) for tensor in models.batches()[step]]


@cases(zero_cases)
def test_zero(accelerator, check, device, case, rank, world_size, group):
    """A llama under a stage of ZeRO has the losses and weights of one process in float64."""
    axes = dict(case.axes)
    config = config_of(int(axes["stage"]), axes["dtype"], world_size)
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)
    run = []
    for step in range(models.STEPS):
        loss = models.loss_on(engine, *_mine(step, rank, world_size, device))
        engine.backward(loss)
        engine.step()
        run.append(float(loss.detach()))

    kind = "" if axes["dtype"] == "float32" else f"_{axes['dtype']}"
    models.check_weights(check, "llama", weights_of(engine), kind=kind)
    check_mean_losses(check, "llama", run, world_size, device, kind=kind)


@cases(step_cases)
def test_steps(accelerator, check, device, case, rank, world_size, group):
    """Micro-steps, two backward passes for one step, and states on the host give the weights of one process."""
    way, stage = case.subject.rpartition(".")[2], int(dict(case.axes)["stage"])
    host = {"offload_optimizer": {"device": "cpu"}, **({"offload_param": {"device": "cpu"}} if stage == 3 else {})}
    more = {"gradient_accumulation_steps": 2} if way != "offload" else {"zero": host}
    config = config_of(stage, "float32", world_size, zero_force_ds_cpu_optimizer=False, **more)
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)
    for step in range(models.STEPS):
        inputs, targets = _mine(step, rank, world_size, device)
        count = config.get("gradient_accumulation_steps", 1)
        parts = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
        for number, part in enumerate(parts):
            if way == "two_backward":
                engine.set_gradient_accumulation_boundary(number == len(parts) - 1)
            engine.backward(models.loss_on(engine, *part))
            if way != "two_backward" or number == len(parts) - 1:
                engine.step()

    models.check_weights(check, "llama", weights_of(engine))


@cases(overflow_cases)
def test_overflow(accelerator, check, device, case, rank, world_size, group):
    """When one gradient overflows on the last rank, every rank skips that step once and halves the loss scale."""
    config, model = (
        config_of(int(dict(case.axes)["stage"]), "float16", world_size),
        models.new_model("llama").to(device),
    )
    scales, changed, overflows = [], [], False
    # Only one weight overflows. After the reduction, one rank alone has a part of its gradient in stages 1 and 2.
    model.model.norm.weight.register_hook(lambda gradient: gradient * (float("inf") if overflows else 1.0))
    engine = start(accelerator, device, model, config, world_size)
    for step in range(3):
        before = weights_of(engine)
        loss = models.loss_on(engine, *_mine(step, rank, world_size, device))
        overflows = step == 1 and rank == world_size - 1
        engine.backward(loss)
        engine.step()
        scales.append(float(engine.optimizer.cur_scale))
        changed.append(any(not torch.equal(before[name], value) for name, value in weights_of(engine).items()))

    check.equal(scales, [LOSS_SCALE, LOSS_SCALE / 2, LOSS_SCALE / 2], "the loss scale after each step")
    check.equal(changed, [True, False, True], "whether each step changed the weights")
    check.equal(engine.skipped_steps, 1, "number of skipped steps")
    check.same_on_all_ranks("weights", torch.cat([value.flatten() for value in weights_of(engine).values()]))

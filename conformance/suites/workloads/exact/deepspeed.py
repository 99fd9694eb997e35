"""Exact trainings under DeepSpeed's engine: every stage of ZeRO gives the bits of one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from conformance.suites.workloads.parallel.deepspeed_engine import start, weights_of

from .families import ROWS, Family
from .ranks import decoder
from .reference import Comparison
from .training import placed

STAGES = (0, 1, 2, 3)


def family_of() -> Family:
    """Return the family that is trained: a decoder of two layers."""
    return decoder(2)


def check_stage(check: Any, accelerator: Any, device: torch.device, stage: int, micro_steps: int = 1) -> None:
    """Check a training under a stage, with ``micro_steps`` backward passes for each step."""
    rank, ranks, family = dist.get_rank(), dist.get_world_size(), family_of()
    model = family.initial().to(device)
    engine = start(accelerator, device, model, _config(stage, ranks, micro_steps), ranks, family.optimizer)
    more = f", {micro_steps} micro-steps" if micro_steps > 1 else ""
    compared = Comparison(family, rank=rank, kind=f"zero {stage}{more}: ")
    for step in range(family.steps):
        inputs, targets = (each.chunk(ranks)[rank] for each in placed(family.batches()[step], device, torch.float32))
        total = 0.0
        for some, wanted in zip(inputs.chunk(micro_steps), targets.chunk(micro_steps), strict=True):
            loss = family.loss(engine(some), wanted)
            engine.backward(loss)
            total += float(loss.detach()) / micro_steps
            if engine.is_gradient_accumulation_boundary():
                compared.gradients(step, _gradients(engine, stage))
            engine.step()
        compared.weights(step, weights_of(engine))
        sums = torch.tensor([total], device=device)
        dist.all_reduce(sums)
        compared.loss(step, float(sums) / ranks)
    compared.tell(check)


def _config(stage: int, ranks: int, micro_steps: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": ROWS // ranks // micro_steps,
        "gradient_accumulation_steps": micro_steps,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Small buckets and parts, so that there are several of each.
        "zero_optimization": {
            "stage": stage, "reduce_bucket_size": 600, "allgather_bucket_size": 600,
            "stage3_param_persistence_threshold": 0,
        },
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
    }  # fmt: skip


def _gradients(engine: Any, stage: int) -> dict[str, torch.Tensor]:
    """Return the full gradients by name. All ranks have to call it."""
    from deepspeed.utils import safe_get_full_grad

    found = {}
    for name, parameter in engine.module.named_parameters():
        gradient = safe_get_full_grad(parameter) if stage else parameter.grad
        if gradient is not None:
            found[name] = gradient
    return found

"""DeepSpeed's engine on ranks whose process group exists, with the accelerator under test as DeepSpeed's own."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from conformance.judging.finding import environment_lacks
from conformance.suites.workloads.libraries import library

from .models import BATCH, optimizer_of

#: Modules that DeepSpeed's optimizers import on first use, which takes seconds. They are imported before the fork.
IMPORTS = ("torch._inductor.compile_fx", "torch.ao.quantization")
#: Scale of the loss in float16. It is low enough for every gradient of these models.
LOSS_SCALE = 256.0


def deepspeed_on(accelerator: Any, device: torch.device, ranks: int) -> Any:
    """Return the module deepspeed, which asks ``accelerator`` for everything; skip the case without the extra."""
    # DeepSpeed asks for these. Its local rank selects a device, and ranks may share one.
    os.environ.update(LOCAL_RANK=str(device.index or 0), LOCAL_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    # DeepSpeed 0.19 uses names of torch.distributed that torch 2.13 has renamed.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|deepspeed)\..*")
    deepspeed = library("deepspeed")
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    # Read before the accelerator changes: DeepSpeed probes its own builders for it once. Without this entry it
    # compiles a library for ranks on one host, and uses it in place of the backend under test.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not isinstance(accelerator, DeepSpeedAccelerator):
        DeepSpeedAccelerator.register(type(accelerator))
    set_accelerator(accelerator)
    _use_builders_of(accelerator)
    return deepspeed


def _use_builders_of(accelerator: Any) -> None:
    """Give DeepSpeed's modules the accelerator's own builders.

    They import builders by name while DeepSpeed is imported, and so get those of the accelerator that it detects.
    """
    for name, module in list(sys.modules.items()):
        if name == "deepspeed.ops.op_builder" or name.startswith("deepspeed.runtime.swap_tensor."):
            for attribute in [each for each in vars(module) if each.endswith("Builder") and each != "OpBuilder"]:
                setattr(module, attribute, accelerator.get_op_builder(attribute))


def config_of(stage: int, dtype: str, ranks: int, **more: Any) -> dict[str, Any]:
    """Return DeepSpeed's configuration; micro-steps come from ``gradient_accumulation_steps`` in ``more``."""
    micro_steps = more.get("gradient_accumulation_steps", 1)
    config = {
        "train_micro_batch_size_per_gpu": BATCH // ranks // micro_steps,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, **more.pop("zero", {})},
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        **more,
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    elif dtype == "float16":
        # With hysteresis 2, the default, the first overflow would leave the scale as it is.
        config["fp16"] = {
            "enabled": True,
            "initial_scale_power": int(torch.tensor(LOSS_SCALE).log2()),
            "hysteresis": 1,
            "loss_scale_window": 1000,
        }
    return config


def start(
    accelerator: Any,
    device: torch.device,
    model: nn.Module,
    config: dict[str, Any],
    ranks: int,
    optimizer_for: Callable[[nn.Module], torch.optim.Optimizer] = optimizer_of,
) -> Any:
    """Return DeepSpeed's engine around the model."""
    deepspeed = deepspeed_on(accelerator, device, ranks)
    try:
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer_for(model), config=config, dist_init_required=False
        )
    except ValueError as error:
        # DeepSpeed asks the accelerator whether it supports a dtype before it builds the engine.
        if "is not supported on your device" not in str(error):
            raise
        environment_lacks(f"DeepSpeed: {error}")
    if "fp16" in config and hasattr(engine.optimizer, "loss_scale_config"):
        # engine.backward() multiplies the loss by the scale for optimizers of ZeRO only; this one divides all the same.
        environment_lacks(
            f"DeepSpeed {deepspeed.__version__} does not scale the loss in float16 without ZeRO, and divides gradients "
            "by the scale; this is DeepSpeed's own error, on every accelerator"
        )
    return engine


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """Return the float32 weights of the engine, full and on the host. All ranks have to call it."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    for name, parameter in engine.module.named_parameters():
        master = safe_get_full_fp32_param(parameter) if engine.zero_optimization_stage() else None
        if master is None:
            with deepspeed.zero.GatheredParameters([parameter]):
                master = parameter.detach()
                found[name] = master.float().cpu().clone()
        else:
            found[name] = master.detach().float().cpu().clone()
    return found

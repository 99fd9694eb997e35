"""Training tasks of the two models: small enough for one CPU core, large enough to learn."""

from __future__ import annotations

import functools

from .data import digit_batches, text_batches
from .loop import HOST, ORACLE, SCHEMES, Trainer, TrainingTask, Trajectory, weights_of
from .models.gpt import GPT, GPTShape
from .models.vit import ViT, ViTShape

GPT_SHAPE = GPTShape()
VIT_SHAPE = ViTShape()
#: Steps after which a model must have learned; the first of them are compared with the float64 oracle.
LEARNING_STEPS = 40
COMPARED_STEPS = 8
#: Steps before and after a restart, and in each run of a rerun.
RESTART_STEPS = 4
_GPT_BATCH, _VIT_BATCH = 8, 50


@functools.cache
def task_named(name: str) -> TrainingTask:
    """Return the task ``"gpt"`` or ``"vit"``."""
    return {"gpt": _gpt, "vit": _vit}[name]()


def _gpt() -> TrainingTask:
    batches = text_batches(_GPT_BATCH, GPT_SHAPE.context, LEARNING_STEPS, seed=1)
    return TrainingTask(lambda dropout: GPT(GPT_SHAPE, dropout), batches, 3e-3, _GPT_BATCH * GPT_SHAPE.context)


def _vit() -> TrainingTask:
    batches = digit_batches(_VIT_BATCH, LEARNING_STEPS, seed=1)
    return TrainingTask(lambda dropout: ViT(VIT_SHAPE, dropout), batches, 3e-3, _VIT_BATCH)


class Reference:
    """Runs of a task on the host; one per process and task, as every dtype is compared with the same oracle."""

    def __init__(self, name: str) -> None:
        task = task_named(name)
        oracle = Trainer(task, HOST, ORACLE)
        self.initial = weights_of(oracle.model)
        self.oracle: Trajectory = oracle.run(COMPARED_STEPS)
        self.oracle_weights = weights_of(oracle.model)
        trained = Trainer(task, HOST, SCHEMES["float32"])
        self.whole: Trajectory = trained.run(LEARNING_STEPS)
        #: Weights that the float32 run on the host learned; the inference cases load them on every device.
        self.learned = {name: tensor.detach() for name, tensor in trained.model.state_dict().items()}


@functools.cache
def reference(name: str) -> Reference:
    """Return the host's runs of the task of that name."""
    return Reference(name)

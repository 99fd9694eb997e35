"""Training by accelerate and by transformers' Trainer, compared with the loop of the families."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from conformance.suites.operators.calls.sampling import host_only

from . import libraries
from .comparing import bounds_of, within
from .families import Family, families
from .family_loop import COMPARED_STEPS, model_on, task_of
from .loop import HOST, RunDevice, weights_of

_RATE = 0.05


@contextlib.contextmanager
def default_device(run_device: RunDevice) -> Iterator[str]:
    """Let accelerate choose the device; yield in which way it is found.

    A device that accelerate does not list is named by a variable, which accelerate and Trainer read. Trainer reads it
    only where CUDA is not available, and some vendors' packages answer for ``torch.cuda``. accelerate's state is a
    singleton, which is reset.
    """
    kind, state = run_device.device.type, libraries.member("accelerate", "PartialState")
    # The host is a device under test too, on machines that have another one.
    named = {"ACCELERATE_USE_CPU": "true"} if kind == "cpu" else {"ACCELERATE_TORCH_DEVICE": str(run_device.device)}
    state._reset_state()
    listed = kind == "cpu" or state().default_device.type == kind
    state._reset_state()
    try:
        with (
            mock.patch.dict("os.environ", named if kind == "cpu" or not listed else {}),
            contextlib.nullcontext() if listed else host_only(),
        ):
            yield "listed by accelerate" if listed else "named by ACCELERATE_TORCH_DEVICE"
    finally:
        libraries.library("accelerate").state.AcceleratorState._reset_state(True)


def plain_run(family: Family, run_device: RunDevice, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights after some steps of the plainest loop."""
    model = model_on(family, run_device, dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    for inputs, targets in task_of(family.name).batches:
        optimizer.zero_grad()
        given = {name: value.to(run_device.device) for name, value in inputs.items()}
        family.kind.loss(model(**given), targets.to(run_device.device)).backward()
        optimizer.step()
    return weights_of(model)


def accelerate_run(family: Family, run_device: RunDevice, check: Any) -> dict[str, torch.Tensor]:
    """Return the weights after the same steps by accelerate."""
    with default_device(run_device) as way:
        accelerator = libraries.member("accelerate", "Accelerator")()
        check.equal(accelerator.device.type, run_device.device.type, "the device that accelerate uses")
        model = model_on(family, run_device, torch.float32).cpu().train()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=_RATE))
        for inputs, targets in task_of(family.name).batches:
            optimizer.zero_grad()
            given = {name: value.to(accelerator.device) for name, value in inputs.items()}
            loss = family.kind.loss(model(**given), targets.to(accelerator.device))
            accelerator.backward(loss)
            optimizer.step()
        found = {name.removeprefix("module."): value for name, value in weights_of(model).items()}
    check.metric("default_device", way)
    return found


def rank_of_two(file: str) -> dict[str, Any]:
    """Train on one rank that torchrun has started, on the CPU; save the weights, and return facts about the ranks.

    A rank has every second row of each batch, so that the mean over ranks is the gradient of the batch.
    """
    accelerator = libraries.member("accelerate", "Accelerator")(cpu=True)
    family = families()["llama"]
    model = model_on(family, HOST, torch.float32).train()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=_RATE))
    for inputs, targets in task_of(family.name).batches:
        optimizer.zero_grad()
        part = slice(accelerator.process_index, None, accelerator.num_processes)
        loss = family.kind.loss(model(**{name: value[part] for name, value in inputs.items()}), targets[part])
        accelerator.backward(loss)
        optimizer.step()
    torch.save({name.removeprefix("module."): value for name, value in weights_of(model).items()}, file)
    accelerator.end_training()
    return {"kind": str(accelerator.distributed_type), "processes": accelerator.num_processes}


class _Batches(torch.utils.data.Dataset):
    """Rows of all batches in their order; the labels are the targets."""

    def __init__(self, family: Family) -> None:
        self.rows = [
            {**{name: value[row] for name, value in inputs.items()}, "labels": targets[row]}
            for inputs, targets in task_of(family.name).batches
            for row in range(len(targets))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.rows[row]


def trainer_run(family: Family, run_device: RunDevice, check: Any, folder: str) -> dict[str, torch.Tensor]:
    """Return the weights after the same steps by transformers' Trainer."""
    base = libraries.member("transformers", "Trainer")

    class Ordered(base):
        """Trainer that takes the rows in order and the loss of the family."""

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            targets = inputs.pop("labels")
            output = model(**inputs)
            loss = family.kind.loss(output, targets)
            return (loss, output) if return_outputs else loss

    class OneDevice(libraries.member("transformers", "TrainingArguments")):
        """Settings for one device: Trainer would share each batch among all GPUs."""

        @property
        def n_gpu(self) -> int:
            return 1

    with default_device(run_device) as way:
        settings = OneDevice(
            output_dir=folder, per_device_train_batch_size=len(task_of(family.name).batches[0][1]),
            max_steps=COMPARED_STEPS, max_grad_norm=0.0, lr_scheduler_type="constant", report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=run_device.device.type == "cpu",
            dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        check.equal(settings.device.type, run_device.device.type, "the device that Trainer uses")
        model = model_on(family, run_device, torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
        trainer = Ordered(model=model, args=settings, train_dataset=_Batches(family), optimizers=(optimizer, None))
        trainer.train()
        found = weights_of(trainer.model)
    check.metric("default_device", way)
    return found


def check_same_training(check: Any, family: Family, found: dict[str, torch.Tensor]) -> None:
    """Compare weights with those of the plain loop in float64: the largest error over the largest weight."""
    wanted, host = plain_run(family, HOST, torch.float64), plain_run(family, HOST, torch.float32)
    initial = weights_of(model_on(family, HOST, torch.float64))
    bounds = bounds_of("float32")
    moved = 0
    for name, exact_weight in wanted.items():
        largest = exact_weight.abs().max()
        error, host_error = (float((side[name] - exact_weight).abs().max() / largest) for side in (found, host))
        within(check, f"the weight {name}", error, bounds.loss / 5, host_error, bounds)
        moved += int(not torch.equal(found[name], initial[name]))
    check.that(moved > len(wanted) / 2, f"only {moved} of {len(wanted)} weights have moved")

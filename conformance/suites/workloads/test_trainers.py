"""Cases of training libraries: accelerate and Trainer train on the device, started as users start them."""

from __future__ import annotations

from conformance.case import cases

from . import trainers
from .families import families
from .loop import RunDevice
from .planned import planned_families


def _one(family):
    return family.name == "llama"


@cases(planned_families("accelerate", "training", dtypes=["float32"], having=_one))
def test_accelerate(accelerator, device, case, check):
    """A loop with accelerate trains on the device, with the weights of a plain loop."""
    family = families()["llama"]

    found = trainers.accelerate_run(family, RunDevice(device, accelerator), check)

    trainers.check_same_training(check, family, found)


@cases(planned_families("trainer", "training", dtypes=["float32"], having=_one))
def test_trainer(accelerator, device, case, check, tmp_path):
    """Trainer of transformers trains on the device, with the weights of a plain loop."""
    family = families()["llama"]

    found = trainers.trainer_run(family, RunDevice(device, accelerator), check, str(tmp_path))

    trainers.check_same_training(check, family, found)

"""Cases of training libraries: accelerate and Trainer train on the device, started as users start them."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM, Cell
from conformance.judging.finding import environment_lacks
from conformance.plan.case import cases
from conformance.suites.launcher.jobs import launch

from . import libraries, trainers
from .families import families
from .loop import RunDevice
from .parallel.planned import planned
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


#: What each rank of torchrun does. Its weights lie beside its facts.
RANK = """
from conformance.suites.workloads import trainers
report(**trainers.rank_of_two(str(folder / f"weights-{rank}.pt")))
"""


def rank_cases():
    """Return the case of two ranks on the CPU, ``workloads.llama.accelerate_ranks[2]``.

    It is deep: two processes import both libraries, which takes 10 s, and it tests accelerate only on the host.
    """
    needs = (COMM, Cell("workloads.llama", "float32", "training"))
    return [planned("llama.accelerate_ranks", (("world", "2"),), needs, None, deep=True)]


@cases(rank_cases)
def test_accelerate_ranks(device, case, check, tmp_path):
    """Two ranks that torchrun starts, with accelerate on the CPU, have the weights of a plain loop."""
    libraries.library("transformers")
    libraries.library("accelerate")
    if device.type != "cpu":
        environment_lacks(
            f"accelerate starts ranks only on devices in its own list; this case is for the CPU, not {device.type}"
        )
    job = launch(tmp_path, RANK, 2)

    check.equal(job.status, 0, f"the exit status of torchrun, which printed: {job.output}")
    found = [(facts["kind"], facts["processes"]) for facts in job.facts.values()]
    check.equal(found, [("DistributedType.MULTI_CPU", 2)] * 2, "the ranks that accelerate sees")
    first, second = (torch.load(tmp_path / f"weights-{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in first.items():
        check.equal(second[name], value, f"{name} on both ranks")
    trainers.check_same_training(check, families()["llama"], first)

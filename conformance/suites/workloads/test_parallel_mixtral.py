"""Cases of a mixtral whose experts are on several ranks, by transformers' own expert parallelism."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_AVERAGE, COMM_DTYPE, Cell
from conformance.case import cases
from conformance.finding import environment_lacks

from .libraries import library
from .parallel import models
from .parallel.layouts import Trained
from .parallel.planned import check_mean_losses, planned

RANK_IMPORTS = models.IMPORTS
NEEDS = (
    COMM,
    COMM_AVERAGE,
    COMM_ALL_TO_ALL,
    COMM_DTYPE.on("float32"),
    COMM_DTYPE.on("int64"),
    Cell("workloads.mixtral", "float32", "training"),
)
#: Sizes that transformers' DistributedConfig gets for a number of ranks. Experts are on ``ep_size`` ranks.
LAYOUTS = {
    "ep": lambda ranks: {"fsdp_size": ranks, "ep_size": ranks},
    "ep-fsdp2": lambda ranks: {"fsdp_size": ranks, "ep_size": ranks // 2},
    "ep-tp": lambda ranks: {"tp_size": ranks, "ep_size": ranks},
}
TRAINED = {"ep": (2, 4), "ep-fsdp2": (4,), "ep-tp": (2, 4)}


def training_cases():
    """Return a case for each layout and number of ranks, such as ``workloads.mixtral.ep[4]``."""
    return [
        planned(f"mixtral.{layout}", (("world", str(ranks)),), NEEDS, ranks)
        for layout, sizes in TRAINED.items()
        for ranks in sizes
    ]


@cases(training_cases)
def test_train(check, device, case, rank, world_size, group, shared_dir):
    """A mixtral with experts on several ranks has the losses and weights of one process in float64."""
    trained = _distributed(case.subject.rpartition(".")[2], device, rank, world_size, shared_dir)
    run = [trained.step(*batch) for batch in models.batches()]

    models.check_weights(check, "mixtral", trained.weights())
    check_mean_losses(check, "mixtral", run, trained.part[1], device)


def _distributed(layout, device, rank, world_size, folder):
    """Return the model as transformers distributes it. It loads a folder, so rank 0 saves one."""
    library("transformers")
    library("accelerate")  # from_pretrained() asks for it where a model goes to devices
    from transformers.distributed import DistributedConfig

    here = torch._C._get_accelerator().type
    if here != device.type:
        environment_lacks(f"transformers lays models out on {here!r}, the accelerator of this process")
    # transformers binds a rank to the device of its local rank; ranks may share devices.
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    if rank == 0:
        models.new_model("mixtral").save_pretrained(folder)
    dist.barrier()
    sizes = LAYOUTS[layout](world_size)
    model = models.class_of("mixtral").from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes), experts_implementation="eager"
    )
    parts = sizes.get("fsdp_size", 1)
    return Trained(model.train(), models.optimizer_of(model), (rank % parts, parts))

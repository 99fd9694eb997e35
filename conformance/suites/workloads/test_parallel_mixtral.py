"""Cases of a mixtral whose experts are on several ranks, by transformers' own expert parallelism."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import CHECKPOINT, COMM, COMM_ALL_TO_ALL, COMM_AVERAGE, COMM_DTYPE, Cell
from conformance.judging.finding import environment_lacks
from conformance.plan.case import cases

from .libraries import library
from .parallel import models
from .parallel.checkpoints import load, save
from .parallel.layouts import LAYOUTS as PLAIN
from .parallel.layouts import Trained, ranks_of
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
#: Layout that saves after half of the steps, and layout that loads. transformers puts a model on all ranks, so that the
#: other side is a layout of PyTorch on two of them.
RESUMED = ((("ep", 4), "fsdp2@2"), (("fsdp2", 2), "ep@4"), (("ep-tp", 4), "one@1"), (("ep-fsdp2", 4), "ddp@2"))
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
    run = [trained.step(*batch) for batch in models.batches()[: models.QUICK_STEPS]]

    exact = models.quick_reference("mixtral")
    models.check_weights(check, "mixtral", trained.weights(), known=exact)
    check_mean_losses(check, "mixtral", run, trained.part[1], device, known=exact)


def resume_cases():
    """Return a case for each pair of layouts, such as ``workloads.mixtral.ep.resume[4-fsdp2@2]``."""
    needs = (CHECKPOINT, COMM_DTYPE.on("uint8"))
    return [
        planned(f"mixtral.{layout}.resume", (("world", str(first)), ("after", after)), (*NEEDS, *needs), 4)
        for (layout, first), after in RESUMED
    ]


@cases(resume_cases)
def test_resume(check, device, case, rank, world_size, group, shared_dir):
    """A mixtral saved with experts on ranks and resumed in other parts, or the reverse, has one process's weights."""
    half, layouts = models.QUICK_STEPS // 2, (_text(case), dict(case.axes)["after"])
    (shared_dir / "saved").mkdir(exist_ok=True)
    for number, (layout, batches) in enumerate(zip(layouts, _halves(half), strict=True)):
        name, ranks = ranks_of(layout)
        group = dist.new_group(list(range(ranks)))
        folder = shared_dir / f"model-{number}"
        trained = (
            _distributed(name, device, rank, ranks, folder, seed=number)
            if name in LAYOUTS
            else PLAIN[name].build(_model(number), device, ranks)
        )
        if trained and number:
            load(trained, shared_dir / "saved", group)
        for batch in batches if trained else ():
            trained.step(*batch)
        if trained and not number:
            save(trained, shared_dir / "saved", group)
        dist.barrier()
    if trained:
        models.check_weights(check, "mixtral", trained.weights(), known=models.quick_reference("mixtral"))
    check.that(True, "took part")  # a rank that only the saving layout has compares nothing


def _text(case):
    return f"{case.subject.split('.')[1]}@{dict(case.axes)['world']}"


def _halves(half):
    return models.batches()[:half], models.batches()[half : models.QUICK_STEPS]


def _model(seed):
    return models.new_model("mixtral", seed, num_hidden_layers=models.QUICK_LAYERS)


def _distributed(layout, device, rank, world_size, folder, seed=0):
    """Return the model as transformers distributes it. It loads a folder, so rank 0 saves one."""
    library("transformers")
    library("accelerate")  # from_pretrained() asks for it where a model goes to devices
    from transformers.distributed import DistributedConfig
    from transformers.utils.logging import disable_progress_bar

    known = torch.accelerator.current_accelerator()
    here = known.type if known is not None else "cpu"
    if here != device.type:
        environment_lacks(f"transformers lays models out on {here!r}, the accelerator of this process")
    # transformers binds a rank to the device of its local rank; ranks may share devices.
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    # Loading in threads, and progress bars, leave threads behind, and a rank with such threads serves no further case.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    disable_progress_bar()
    if rank == 0:
        _model(seed).save_pretrained(folder)
    dist.barrier()
    sizes = LAYOUTS[layout](world_size)
    model = models.class_of("mixtral").from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes), experts_implementation="eager"
    )
    parts = sizes.get("fsdp_size", 1)
    return Trained(model.train(), models.quick_optimizer_of(model), (rank % parts, parts))

"""Cases of a llama under the parallel engines of PyTorch: it trains as in one process, and resumes under others."""

from __future__ import annotations

import torch.distributed as dist

from conformance.accelerators.capabilities import CHECKPOINT, COMM, COMM_DTYPE, Cell
from conformance.plan.case import cases

from .parallel import models
from .parallel.checkpoints import load, save
from .parallel.layouts import LAYOUTS, ranks_of
from .parallel.planned import check_mean_losses, planned

RANK_IMPORTS = models.IMPORTS
NEEDS = (COMM.cell, COMM_DTYPE.on("float32"), Cell("workloads.llama", "float32", "training"))
#: Numbers of ranks of each layout. Schedules with two stages on a rank cut four layers for two ranks.
TRAINED = {
    **dict.fromkeys(("ddp", "fsdp2", "tp", "sp", "gpipe", "1f1b"), (2, 4)),
    **dict.fromkeys(("hsdp", "fsdp2-tp", "1f1b-fsdp2"), (4,)),
    **dict.fromkeys(
        ("interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv-zero-bubble", "dual-pipe-v"), (2,)
    ),
}
#: Layout that saves after half of the steps, and layout that loads and trains the other half.
RESUMED = (
    ("fsdp2@2", "one@1"),
    ("fsdp2@2", "fsdp2@4"),
    ("fsdp2@4", "fsdp2@2"),
    ("fsdp2@2", "tp@2"),
    ("fsdp2@2", "fsdp2-tp@4"),
    ("fsdp2-tp@4", "ddp@2"),
    ("hsdp@4", "tp@2"),
    ("ddp@2", "fsdp2@4"),
    ("tp@2", "tp@4"),
    ("tp@4", "fsdp2@2"),
    ("sp@2", "1f1b@2"),
    ("1f1b@2", "fsdp2@2"),
    ("1f1b@2", "1f1b@4"),
    ("interleaved-1f1b@2", "one@1"),
    ("1f1b-fsdp2@4", "ddp@2"),
    ("sp@4", "fsdp2@2"),
    ("gpipe@2", "tp@4"),
    ("looped-bfs@2", "fsdp2@4"),
    ("interleaved-zero-bubble@2", "one@1"),
    ("zbv-zero-bubble@2", "ddp@4"),
    ("dual-pipe-v@2", "hsdp@4"),
)


def _case(subject, axes, layouts, ranks, *needs):
    own = [need for name in layouts for need in LAYOUTS[name].needs]
    return planned(f"llama.{subject}", axes, (*NEEDS, *own, *needs), ranks)


def training_cases():
    """Return a case for each layout and number of ranks, such as ``workloads.llama.fsdp2[4]``."""
    return [
        _case(layout, (("world", str(ranks)),), [layout], ranks) for layout, sizes in TRAINED.items() for ranks in sizes
    ]


def resume_cases():
    """Return a case for each pair of layouts, such as ``workloads.llama.fsdp2.resume[2-tp@4]``."""
    planned = []
    for before, after in RESUMED:
        (saving, first), (loading, second) = ranks_of(before), ranks_of(after)
        axes = (("world", str(first)), ("after", after))
        needs = (CHECKPOINT, COMM_DTYPE.on("uint8"), COMM_DTYPE.on("int64"))
        planned.append(_case(f"{saving}.resume", axes, [saving, loading], max(first, second), *needs))
    return planned


@cases(training_cases)
def test_train(check, device, case, world_size, group):
    """A llama under a parallel engine has the losses and weights of one process in float64."""
    layout = case.subject.rpartition(".")[2]
    layers = LAYOUTS[layout].layers(world_size)
    exact = models.quick_reference("llama", layers)
    trained = LAYOUTS[layout].build(models.new_model("llama", num_hidden_layers=layers), device, world_size)
    run = [trained.step(*batch) for batch in models.batches()[: models.QUICK_STEPS]]

    models.check_weights(check, "llama", trained.weights(), every=not trained.pipeline, known=exact)
    check_mean_losses(check, "llama", run, trained.part[1], device, known=exact)


@cases(resume_cases)
def test_resume(check, device, case, rank, world_size, group, shared_dir):
    """A llama saved under one engine and resumed under another, on other ranks, has the weights of one process."""
    axes, half = dict(case.axes), models.QUICK_STEPS // 2
    saving, (loading, second) = case.subject.split(".")[1], ranks_of(axes["after"])
    first = int(axes["world"])
    layers = max(LAYOUTS[saving].layers(first), LAYOUTS[loading].layers(second))
    # new_group() is a collective: all ranks make all groups, in the same order.
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({first, second})}

    before = LAYOUTS[saving].build(models.new_model("llama", num_hidden_layers=layers), device, first)
    if before:
        for batch in models.batches()[:half]:
            before.step(*batch)
        save(before, shared_dir, groups[first])
    dist.barrier()
    after = LAYOUTS[loading].build(models.new_model("llama", seed=1, num_hidden_layers=layers), device, second)
    if after:
        load(after, shared_dir, groups[second])
        for batch in models.batches()[half : models.QUICK_STEPS]:
            after.step(*batch)
        exact = models.quick_reference("llama", layers)
        models.check_weights(check, "llama", after.weights(), every=not after.pipeline, known=exact)
    check.that(True, "took part")  # a rank that only the saving layout has compares nothing

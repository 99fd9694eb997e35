"""Cases of a llama whose sequence is on several ranks, by PyTorch's ring attention."""

from __future__ import annotations

import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, Cell
from conformance.case import cases
from conformance.finding import environment_lacks

from .parallel import models
from .parallel.layouts import LAYOUTS, whole
from .parallel.planned import check_mean_losses, planned

RANK_IMPORTS = models.IMPORTS
NEEDS = (
    COMM,
    COMM_ALL_TO_ALL,
    COMM_DTYPE.on("float32"),
    *LAYOUTS["ddp"].needs,
    Cell("workloads.llama", "float32", "training"),
)
#: Part of PyTorch's message where the device computes attention by an operator that ring attention does not know.
UNKNOWN_ATTENTION = "does not have a sharding strategy registered"


def training_cases():
    """Return a case for each number of ranks, such as ``workloads.llama.cp[4]``."""
    return [planned("llama.cp", (("world", str(ranks)),), NEEDS, ranks) for ranks in (2, 4)]


@cases(training_cases)
def test_train(check, device, case, world_size, group):
    """A llama with a part of each sequence on every rank has the losses and weights of one process in float64."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh(device.type, (world_size,))
    model = DistributedDataParallel(models.new_model("llama").to(device))
    optimizer, run = models.optimizer_of(model), []
    for tokens, targets in models.batches():
        optimizer.zero_grad()
        run.append(_step(model, mesh, tokens.to(device), targets.to(device)))
        optimizer.step()

    weights = {name.removeprefix("module."): whole(value) for name, value in model.named_parameters()}
    models.check_weights(check, "llama", weights)
    check_mean_losses(check, "llama", run, dist.get_world_size(), device)


def _step(model, mesh, tokens, targets):
    """Run one forward and backward pass on this rank's part of every sequence, and return its loss."""
    from torch.distributed.tensor.experimental import context_parallel

    places = models.positions(tokens.device, len(tokens)).contiguous()
    try:
        with context_parallel(mesh, buffers=[tokens, targets, places], buffer_seq_dims=[1, 1, 1]):
            loss = models.loss_of(model(tokens, position_ids=places, use_cache=False).logits, targets)
            loss.backward()
    except NotImplementedError as error:
        if UNKNOWN_ATTENTION not in str(error):
            raise
        dist.barrier()  # every rank has seen the same refusal; else those that are later would count as lost
        environment_lacks(f"PyTorch's context parallelism does not know this device's attention: {error}")
    return float(loss.detach())

"""Cases of a llama whose sequence is on several ranks, by PyTorch's ring attention."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, Cell
from conformance.judging.finding import environment_lacks
from conformance.plan.case import cases

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
#: Operators that PyTorch's ring attention replaces. With another one, DTensor refuses on some ranks ("Operator … does
#: not have a sharding strategy registered.") while the others wait for them, so a case asks before.
KNOWN = tuple(f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("flash", "efficient", "cudnn"))


class _Operators(TorchDispatchMode):
    """Record of the names of all operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def require_known_attention(device):
    """Skip the case if ring attention does not know the operator by which the device computes attention."""
    query = torch.randn(1, 1, 8, 8, device=device, requires_grad=True)
    with _Operators() as seen:
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    if not set(KNOWN) & set(seen.names):
        used = next((name for name in seen.names if "dot_product" in name), ", ".join(seen.names))
        environment_lacks(
            f"PyTorch's ring attention knows flash, efficient and cuDNN attention; this device computes attention by "
            f"{used}, so PyTorch says: Operator {used} does not have a sharding strategy registered."
        )


def training_cases():
    """Return a case for each number of ranks, such as ``workloads.llama.cp[4]``."""
    return [planned("llama.cp", (("world", str(ranks)),), NEEDS, ranks) for ranks in (2, 4)]


@cases(training_cases)
def test_train(check, device, case, world_size, group):
    """A llama with a part of each sequence on every rank has the losses and weights of one process in float64."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    require_known_attention(device)
    mesh = init_device_mesh(device.type, (world_size,))
    model = DistributedDataParallel(models.new_model("llama", num_hidden_layers=models.QUICK_LAYERS).to(device))
    optimizer, run = models.quick_optimizer_of(model), []
    for tokens, targets in models.batches()[: models.QUICK_STEPS]:
        optimizer.zero_grad()
        run.append(_step(model, mesh, tokens.to(device), targets.to(device)))
        optimizer.step()

    weights = {name.removeprefix("module."): whole(value) for name, value in model.named_parameters()}
    exact = models.quick_reference("llama")
    models.check_weights(check, "llama", weights, known=exact)
    check_mean_losses(check, "llama", run, dist.get_world_size(), device, known=exact)


def _step(model, mesh, tokens, targets):
    """Run one forward and backward pass on this rank's part of every sequence, and return its loss."""
    from torch.distributed.tensor.experimental import context_parallel

    places = models.positions(tokens.device, len(tokens)).contiguous()
    with context_parallel(mesh, buffers=[tokens, targets, places], buffer_seq_dims=[1, 1, 1]):
        loss = models.loss_of(model(tokens, position_ids=places, use_cache=False).logits, targets)
        loss.backward()
    return float(loss.detach())

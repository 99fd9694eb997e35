"""Cases of tensor-parallel layouts on many logical ranks in one process, by PyTorch's LocalTensor mode."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import Cell
from conformance.judging.finding import environment_lacks
from conformance.plan.case import cases

from .parallel import models
from .parallel.layouts import LAYOUTS
from .parallel.planned import planned

NEEDS = (Cell("workloads.llama", "float32", "training"),)
#: Logical ranks, each of which has one attention head. 64 of them take four times as long and have no other code, so
#: they belong to the deep tier.
RANKS = (16, 64)
#: LocalTensor mode is private to PyTorch. In these series its interface is the one that is used here.
SERIES = ("2.13",)


def logical_cases():
    """Return a case for each number of logical ranks, such as ``workloads.llama.logical_tp[64]``."""
    return [planned("llama.logical_tp", (("ranks", str(ranks)),), NEEDS, None, deep=ranks > 16) for ranks in RANKS]


def _config(ranks):
    """Return changes of the small configuration: a head, and a part of each matrix, for every rank."""
    sizes = {"num_attention_heads": ranks, "num_key_value_heads": ranks}
    return {**sizes, "hidden_size": 4 * ranks, "intermediate_size": 2 * ranks, "num_hidden_layers": 2}


@cases(logical_cases)
def test_logical(check, device, case):
    """With a llama's matrices cut for many logical ranks, every gradient is that of one process in float64."""
    ranks = int(dict(case.axes)["ranks"])
    if not torch.__version__.startswith(SERIES):
        environment_lacks(f"LocalTensor mode is private; it was tested with torch {', '.join(SERIES)}")
    tokens, targets = (tensor[:2] for tensor in models.batches()[0])
    exact = models.new_model("llama", **_config(ranks)).double()
    models.loss_on(exact, tokens, targets).backward()

    try:
        gradients = _gradients(ranks, device, tokens.to(device), targets.to(device))
    except RuntimeError as error:
        if "FakeTensor" not in str(error):
            raise
        # One known cause: the device module's set_rng_state copies the state by an operator.
        environment_lacks(f"PyTorch's DTensor cannot plan layouts for {device.type} in LocalTensor mode: {error}"[:300])

    allowed, worst = models.bound("gradients"), 0.0
    for name, parameter in exact.named_parameters():
        error = models.error_of(gradients[name], parameter.grad)
        check.that(error <= allowed, f"the gradient of {name} is off by {error:.3g}, allowed {allowed:.3g}")
        worst = max(worst, error)
    check.metric("gradient_error", worst)


def _gradients(ranks, device, tokens, targets):
    """Return the full gradients of a pass with one logical rank for every head, on the host."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # Inside the mode, generators are patched: the model and its data are made before.
    model = models.new_model("llama", **_config(ranks)).to(device)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with LocalTensorMode(ranks):
            mesh = dist.init_device_mesh(device.type, (ranks,))
            model = LAYOUTS["tp"].wrap(model, mesh, device)
            models.loss_on(model, tokens, targets).backward()
            found = {name: _full(value.grad) for name, value in model.named_parameters()}
        return {name: _same(value) for name, value in found.items()}
    finally:
        dist.destroy_process_group()


def _full(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def _same(gradient):
    """Return the value of rank 0, on the host. Values are read outside of the mode."""
    return (gradient._local_tensors[0] if hasattr(gradient, "_local_tensors") else gradient).cpu()

"""Layouts of a llama on ranks: engines of PyTorch that share one call, ``layout_of(name).build(...)``.

A layout takes the model on the host and returns it wrapped, sharded or cut. Its mesh covers the first ranks of the
world; the other ranks build nothing. So one case can save under one layout and load under another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM_AVERAGE, COMM_DTYPE, COMM_P2P

from .models import QUICK_LAYERS, loss_of, loss_on, quick_optimizer_of
from .stages import MICRO_BATCHES, Pipeline, stages_of


@dataclass(frozen=True)
class Learning:
    """Loss and optimizer of a training, and the micro-batches of a pipeline."""

    loss_on: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = loss_on
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss_of
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] = quick_optimizer_of
    micro_batches: int = MICRO_BATCHES


@dataclass
class Trained:
    """Model of one rank under a layout, with its optimizer. ``part`` is its number, and the count, of batch parts."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    part: tuple[int, int] = (0, 1)
    pipeline: Pipeline | None = None
    learning: Learning = Learning()

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Train on this rank's part of the whole batch. Return the loss, or None where another rank has it."""
        loss = self.backward(tokens, targets)
        self.optimizer.step()
        return loss

    def backward(self, tokens: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Compute the gradients of this rank's part of the whole batch, and return as ``step`` does."""
        number, count = self.part
        tokens, targets = (tensor.chunk(count)[number].to(_device(self.model)) for tensor in (tokens, targets))
        self.optimizer.zero_grad()
        if self.pipeline:
            loss = self.pipeline.step(tokens, targets)
        else:
            loss = self.learning.loss_on(self.model, tokens, targets)
            loss.backward()
        return None if loss is None else float(whole(loss))

    def weights(self) -> dict[str, torch.Tensor]:
        """Return full weights by the model's own names. All ranks of a mesh have to call it."""
        return {name.removeprefix("module."): whole(value) for name, value in self.model.named_parameters()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host of the full tensor. It is a collective for a sharded tensor."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu().clone()


def _replicated(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model.to(device), process_group=mesh.get_group())


def _sharded(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = model.to(device)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _sharded_stage(stage: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in stage.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(stage, mesh=mesh)


def _plan() -> dict[str, Any]:
    """Return the tensor-parallel style of every module, by pattern of names."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    by_column = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        **{f"model.layers.*.{name}": ColwiseParallel() for name in by_column},
        **{f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")},
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }


def _sequence_plan() -> dict[str, Any]:
    """Return the tensor-parallel plan in which norms and residuals have a part of the sequence each."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    norms = ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm")
    cut, full = Shard(1), Replicate()
    return {
        **_plan(),
        "model.embed_tokens": RowwiseParallel(input_layouts=full, output_layouts=cut),
        **{name: SequenceParallel(use_local_output=True) for name in norms},
        # Attention is called by keyword.
        "model.layers.*.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": cut}, desired_input_kwarg_layouts={"hidden_states": full}
        ),
        "model.layers.*.mlp": PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(full,)),
        "model.layers.*.self_attn.o_proj": RowwiseParallel(output_layouts=cut),
        "model.layers.*.mlp.down_proj": RowwiseParallel(output_layouts=cut),
        "lm_head": ColwiseParallel(input_layouts=cut, output_layouts=full),
    }


def _tensor_parallel(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    from torch.distributed.tensor.parallel import parallelize_module

    return parallelize_module(model.to(device), mesh, _plan())


def _sequence_parallel(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    from torch.distributed.tensor.parallel import parallelize_module

    return parallelize_module(model.to(device), mesh, _sequence_plan())


def _sharded_and_tensor_parallel(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    return _sharded(_tensor_parallel(model, mesh["tp"], device), mesh["dp"], device)


def _unchanged(model: nn.Module, mesh: Any, device: torch.device) -> nn.Module:
    return model.to(device)


@dataclass(frozen=True)
class Layout:
    """Way to lay a model out. ``mesh`` gives sizes and names of the mesh's dimensions for a number of ranks.

    ``parts`` names the dimensions over which the batch is cut. ``needs`` are requirements besides ``comm``. A pipeline
    has a ``schedule``, and its ``wrap`` wraps each stage.
    """

    wrap: Callable[..., nn.Module]
    mesh: Callable[[int], tuple[tuple[int, ...], tuple[str, ...]]] = lambda ranks: ((ranks,), ("dp",))
    parts: tuple[str, ...] = ("dp",)
    needs: tuple[Any, ...] = (COMM_AVERAGE,)
    schedule: str = ""

    def build(
        self, model: nn.Module, device: torch.device, ranks: int, learning: Learning = Learning()
    ) -> Trained | None:
        """Return the model on the first ``ranks`` ranks, None on others. Every rank of the world has to call it."""
        from torch.distributed.device_mesh import DeviceMesh

        sizes, names = self.mesh(ranks)
        mesh = DeviceMesh(device.type, torch.arange(ranks).view(sizes), mesh_dim_names=names)
        if dist.get_rank() >= ranks:
            return None
        if not self.schedule:
            model = self.wrap(model, mesh, device)
            return Trained(model, learning.optimizer_of(model), self._part(mesh), learning=learning)
        pipeline = Pipeline(model, self.schedule, mesh["pp"].get_group(), device)
        pipeline.start(lambda stage: self.wrap(stage, mesh, device), learning.loss_of, learning.micro_batches)
        return Trained(pipeline.own, learning.optimizer_of(pipeline.own), self._part(mesh), pipeline, learning)

    def layers(self, ranks: int) -> int:
        """Return how many layers a model needs: one for each stage of a pipeline."""
        sizes, names = self.mesh(ranks)
        return max(QUICK_LAYERS, stages_of(self.schedule, sizes[names.index("pp")]) if self.schedule else 1)

    def _part(self, mesh: Any) -> tuple[int, int]:
        """Return the number, and the count, of this rank's part of the batch."""
        number, count = 0, 1
        for name in self.parts:
            size = mesh[name].size()
            number, count = number * size + mesh[name].get_local_rank(), count * size
        return number, count


def _halves(first: str, second: str) -> Callable[[int], tuple[tuple[int, ...], tuple[str, ...]]]:
    return lambda ranks: ((2, ranks // 2), (first, second))


def _line(name: str) -> Callable[[int], tuple[tuple[int, ...], tuple[str, ...]]]:
    return lambda ranks: ((ranks,), (name,))


#: DDP compares shapes and buckets of the ranks by collectives of integers, and divides gradients by itself.
_DDP_NEEDS = (COMM_DTYPE.on("int32"), COMM_DTYPE.on("int64"))


def _pipelined(schedule: str) -> Layout:
    return Layout(_unchanged, _line("pp"), parts=(), needs=(COMM_P2P,), schedule=schedule)


LAYOUTS = {
    "one": Layout(_unchanged, needs=()),
    "ddp": Layout(_replicated, needs=_DDP_NEEDS),
    "fsdp2": Layout(_sharded),
    "hsdp": Layout(_sharded, _halves("replicate", "dp"), parts=("replicate", "dp")),
    "tp": Layout(_tensor_parallel, _line("tp"), parts=(), needs=()),
    "sp": Layout(_sequence_parallel, _line("tp"), parts=(), needs=()),
    "fsdp2-tp": Layout(_sharded_and_tensor_parallel, _halves("dp", "tp")),
    "gpipe": _pipelined("ScheduleGPipe"),
    "1f1b": _pipelined("Schedule1F1B"),
    "interleaved-1f1b": _pipelined("ScheduleInterleaved1F1B"),
    "looped-bfs": _pipelined("ScheduleLoopedBFS"),
    "interleaved-zero-bubble": _pipelined("ScheduleInterleavedZeroBubble"),
    "zbv-zero-bubble": _pipelined("ScheduleZBVZeroBubble"),
    "dual-pipe-v": _pipelined("ScheduleDualPipeV"),
    "1f1b-fsdp2": Layout(
        lambda stage, mesh, device: _sharded_stage(stage, mesh["dp"], device),
        _halves("pp", "dp"),
        needs=(COMM_P2P, COMM_AVERAGE),
        schedule="Schedule1F1B",
    ),
}


def ranks_of(text: str) -> tuple[str, int]:
    """Return layout and number of ranks of a text such as ``"fsdp2@2"``."""
    name, _, ranks = text.partition("@")
    return name, int(ranks)

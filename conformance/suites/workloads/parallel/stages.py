"""Llama cut by hand into the stages of a pipeline. The schedules are those of torch.distributed.pipelining."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .models import loss_of, positions

#: Schedules that have two stages on each rank, and how far apart these are.
LOOPED = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
MICRO_BATCHES = 6


def stages_of(schedule: str, ranks: int) -> int:
    """Return the number of stages of a schedule on so many ranks."""
    return 2 * ranks if schedule in (*LOOPED, *V_SHAPED) else ranks


class Own(nn.Module):
    """Modules of a llama that one rank has, under the names that they have in the whole model."""

    def __init__(self, whole: nn.Module, stages: list[int], count: int) -> None:
        super().__init__()
        layers = len(whole.model.layers) // count
        self.model = nn.Module()
        self.model.layers = nn.ModuleDict()
        self.model.rotary_emb = whole.model.rotary_emb  # it has no weights, and every stage needs it
        self.first, self.last = 0 in stages, count - 1 in stages
        self.numbers = {stage: range(stage * layers, (stage + 1) * layers) for stage in stages}
        for numbers in self.numbers.values():
            for number in numbers:
                self.model.layers[str(number)] = whole.model.layers[number]
        if self.first:
            self.model.embed_tokens = whole.model.embed_tokens
        if self.last:
            self.model.norm, self.lm_head = whole.model.norm, whole.lm_head


class Stage(nn.Module):
    """One stage of a pipeline: the embedding or a hidden state goes in, a hidden state or logits come out."""

    def __init__(self, own: Own, number: int, count: int) -> None:
        super().__init__()
        self.embed = own.model.embed_tokens if number == 0 else None
        self.layers = nn.ModuleList([own.model.layers[str(layer)] for layer in own.numbers[number]])
        self.rotary = own.model.rotary_emb
        self.head = nn.Sequential(own.model.norm, own.lm_head) if number == count - 1 else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            hidden = self.embed(hidden)
        rotations = self.rotary(hidden, positions(hidden.device))
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotations, attention_mask=None)
        return hidden if self.head is None else self.head(hidden)


class Pipeline:
    """Stages of one rank and their schedule. ``own`` has the rank's modules, under the model's names."""

    def __init__(self, model: nn.Module, schedule: str, group: Any, device: torch.device) -> None:
        self._schedule_name, self._group, self._device = schedule, group, device
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self._count = stages_of(schedule, ranks)
        if schedule in LOOPED:
            self._numbers = [rank, rank + ranks]
        elif schedule in V_SHAPED:
            self._numbers = [rank, 2 * ranks - 1 - rank]
        else:
            self._numbers = [rank]
        self.own = Own(model, self._numbers, self._count).to(device)

    def start(
        self,
        wrap: Callable[[nn.Module], nn.Module],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss_of,
        micro_batches: int = MICRO_BATCHES,
    ) -> None:
        """Build the schedule, with every stage wrapped by ``wrap``."""
        from torch.distributed import pipelining
        from torch.distributed.pipelining import schedules

        stages = [
            pipelining.PipelineStage(
                wrap(Stage(self.own, number, self._count)), number, self._count, self._device, group=self._group
            )
            for number in self._numbers
        ]
        kind = getattr(schedules, self._schedule_name)
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        self._schedule = kind(stages if several else stages[0], micro_batches, loss_fn=loss)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Run one batch forward and backward; return its loss on the rank that has the last stage."""
        losses: list[torch.Tensor] = []
        given = (tokens,) if self.own.first else ()
        wanted = {"target": targets, "losses": losses} if self.own.last else {}
        # Some schedules print their order.
        with contextlib.redirect_stdout(io.StringIO()):
            self._schedule.step(*given, **wanted)
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None

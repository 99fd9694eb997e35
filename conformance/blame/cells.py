"""Fused cells of recurrent networks, whose backward reads what the forward has kept.

What a cell keeps is its own affair; CUDA's kernels keep the gates. Where a cell has kept other numbers, its backward is
judged by the gates that follow from the forward's inputs. If that is wrong, and right for the numbers that were kept,
read as gates, then the forward has kept wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from conformance.numerics.transfer import copied
from conformance.suites.calls.kernels import base_name, bound

from .host_forms import WORKSPACES
from .local import HOST, Before, Local, judge, judge_inputs, outputs_on_host
from .memory import Place
from .recording import Step

_BACKWARD = frozenset({"_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell_backward"})


@dataclass
class _Forward:
    """A forward call of a cell: its judgement and its inputs, and its errors, which the judgement may lose."""

    local: Local
    before: Before
    deltas: list[torch.Tensor | None]

    @property
    def position(self) -> int:
        """Return the position of the result that is kept for the backward."""
        return WORKSPACES[base_name(self.local.step.function)]

    @property
    def memory(self) -> int | None:
        """Return the memory of what was kept."""
        place = self.local.step.results[self.position]
        return place.memory if isinstance(place, Place) else None

    def accuse(self, kept: Local, backward: Local) -> None:
        """Let the call be wrong by what it has kept."""
        local, self.deltas[self.position] = self.local, kept.deltas[0]
        local.before, local.deltas, local.ratio = self.before, self.deltas, max(local.ratio, kept.ratio)
        what = f"output {self.position}, which its backward reads: {kept.finding}; then {backward.finding}"
        local.finding = local.finding or what


class Cells:
    """Judgement of the calls of one run: a cell's backward is judged with its forward, all others by themselves."""

    def __init__(self) -> None:
        self._forward: list[_Forward] = []

    def judge(self, step: Step, before: Before, after: list[torch.Tensor], inputs: list[torch.Tensor]) -> Local:
        """Judge a call; the arguments are those of ``local.judge``."""
        if base_name(step.function) in _BACKWARD:
            return self._judge_backward(step, before, after, inputs)
        local = judge(step, before, after, inputs)
        if local.kept is not None:
            self._forward.append(_Forward(local, before, local.deltas))
        return local

    def _judge_backward(
        self, step: Step, before: Before, after: list[torch.Tensor], inputs: list[torch.Tensor]
    ) -> Local:
        place = bound(step.function, step.args, step.kwargs)["workspace"]
        memory = place.memory if isinstance(place, Place) else None
        forward = next((one for one in reversed(self._forward) if one.memory == memory), None)
        if forward is None or forward.local.kept is None:
            return Local(step, unjudged="its forward was not seen", needs_constants=True)
        own = judge(step, before, after, inputs)
        kept = forward.local.kept
        if not kept.wrong:
            return own
        right = judge(step, _with_gates(step, before, forward), after, [])
        judge_inputs(right, step, before, inputs)
        if right.wrong and not own.wrong:
            forward.accuse(kept, right)
            return own
        return right


def _with_gates(step: Step, before: Before, forward: _Forward) -> Before:
    """Return the arguments of a backward with the gates that follow from the forward's inputs."""
    given = copied((forward.before.args, forward.before.kwargs), HOST)
    gates = outputs_on_host(forward.local.step.function, *given)[forward.position]
    position = next(i for i, argument in enumerate(step.function._schema.arguments) if argument.name == "workspace")
    if position < len(before.args):
        return replace(before, args=(*before.args[:position], gates, *before.args[position + 1 :]))
    return replace(before, kwargs={**before.kwargs, "workspace": gates})

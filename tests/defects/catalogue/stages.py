"""Defects that stages of a pipeline show: activations, gradients, weights and groups of several ranks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.defects.catalogue.collectives import INNOCENT
from tests.defects.catalogue.experts import in_groups_nothing, own_largest
from tests.defects.catalogue.parallel import broken
from tests.defects.faults import Fault, Where, scaled
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import replaced

#: Micro-batches of a step.
_MICRO = 6
STAGES, STEPS = "stages of a pipeline", "training in stages"


def of_an_operator(name: str, family: str, precedent: str, caught_by: str, **operators: Any) -> Mutant:
    """Return a mutant of an operator for a case on ranks."""
    named = {f"aten::{operator}": around for operator, around in operators.items()}
    what = Fault(name, family, precedent, Where.OPERATOR, caught_by, operators=named)
    return Mutant(what, (), (caught_by, INNOCENT), how=How.PYTEST)


class _Late:
    """Work whose tensor changes when it is waited for."""

    def __init__(self, work: Any, change: Any, tensor: Any, number: int) -> None:
        self._work, self._change, self._tensor, self._number = work, change, tensor, number

    def wait(self, *args: Any) -> Any:
        result = self._work.wait(*args)
        if self._change is not None:
            self._change(self._tensor, self._number)
            self._change = None
        return result


def received(change: Any) -> Any:
    """Change every tensor of floats that a stage receives; ``change(tensor, number)`` after it has been waited for."""

    def around(old: Any) -> Any:
        seen = [0]

        def call(messages: Any, *args: Any, **kwargs: Any) -> Any:
            works = old(messages, *args, **kwargs)
            taken = [m for m in messages if m.op is dist.irecv and m.tensor.is_floating_point()]
            late = []
            for place, message in enumerate(taken):
                # A batch may have one handle for all its messages.
                late.append(_Late(works[min(place, len(works) - 1)], change, message.tensor, seen[0]))
                seen[0] += 1
            return [*works, *late]

        return call

    @contextmanager
    def context() -> Any:
        from torch.distributed.pipelining import schedules

        with replaced(schedules, _batch_p2p=around)():
            yield

    return context


def _last_row_lost(tensor: Any, number: int) -> None:
    tensor[-1].zero_()


def _columns_turned(tensor: Any, number: int) -> None:
    tensor.copy_(tensor.flip(-1).clone())


def _second_lost(tensor: Any, number: int) -> None:
    if number == 1:
        tensor.zero_()


def _three_bits(tensor: Any, number: int) -> None:
    """What is sent in 16 bits is rounded to a multiple of a quarter."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor.copy_((tensor * 4).round() / 4)


def _first_step_again() -> Any:
    """A pipeline gets the activations of its first step in every later one."""
    kept: dict[tuple[int, ...], list[Any]] = {}
    counts: dict[tuple[int, ...], int] = {}

    def change(tensor: Any, number: int) -> None:
        shape = tuple(tensor.shape)
        place = counts[shape] = counts.get(shape, -1) + 1
        if place < _MICRO:
            kept.setdefault(shape, []).append(tensor.clone())
        else:
            tensor.copy_(kept[shape][place % _MICRO])

    return change


def _loads_zeros(old: Any) -> Any:
    """Moments of an optimizer are not in the file."""

    def load(*args: Any, **kwargs: Any) -> Any:
        state = old(*args, **kwargs)
        for moments in state.get("optimizer", {}).get("state", {}).values():
            moments["exp_avg"].zero_()
        return state

    return load


def _float_sums_stay(old: Any) -> Any:
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if tensor.is_floating_point() and not kwargs else old(tensor, *args, **kwargs)

    return call


def _other_numbers_again(old: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return old(*args, **{**kwargs, "preserve_rng_state": False})

    return call


def _not_cut(old: Any) -> Any:
    """Every micro-batch gets the first rows of the keyword arguments."""

    def split(args: Any, kwargs: Any, chunks: int, *rest: Any, **named: Any) -> Any:
        given, words = old(args, kwargs, chunks, *rest, **named)
        return given, [words[0] for _ in words]

    return split


def _chunking() -> Any:
    from torch.distributed.pipelining import schedules

    return replaced(schedules, split_args_kwargs_into_chunks=_not_cut)()


def _checkpointing() -> Any:
    import torch.utils.checkpoint as module

    return replaced(module, checkpoint=_other_numbers_again)()


_ENGINE = "DeepSpeed pipe engine: partial activations"

MUTANTS: tuple[Mutant, ...] = (
    broken("messages between stages lose their last row", STAGES, _ENGINE, "pipe.unequal[zbv-zero-bubble]",
           received(_last_row_lost)),
    broken("messages between unequal stages are turned", STAGES, "DeepSpeed pipe engine: transposed buffers",
           "pipe.partition[parameters-1f1b-3]", received(_columns_turned)),
    broken("the second micro-batch arrives empty", STAGES, _ENGINE, "pipe.micro[4-gpipe]",
           received(_second_lost)),
    broken("a forward pass alone gets half a batch", STAGES, _ENGINE, "pipe.validation[1f1b]",
           received(_last_row_lost)),
    broken("activations in 16 bits have three", STAGES, "DeepSpeed pipe engine: fp16 buffers in another dtype",
           "pipe.dtype[bfloat16-gpipe]", received(_three_bits)),
    broken("of two tensors between stages one arrives", STAGES, "DeepSpeed pipe engine: tuples of activations",
           "pipe.skip[gpipe]", received(_second_lost)),
    broken("keyword arguments are those of the first micro-batch", STAGES, "DeepSpeed pipe engine: masks in batches",
           "pipe.keywords[1f1b]", _chunking),
    broken("stages work on the activations of the first step", STEPS, "buffers of a pipeline that are not refilled",
           "pipe.training[1f1b]", received(_first_step_again())),
    broken("replicas of a pipeline stay apart", STEPS, "DeepSpeed 3D: data-parallel groups of stages",
           "pipe.data_parallel[by-hand]", replaced(dist, all_reduce=in_groups_nothing)),
    broken("moments of a stage are not loaded", STEPS, "DeepSpeed pipe engine: states by layer files",
           "pipe.checkpoint[2-3]", replaced(torch, load=_loads_zeros)),
    broken("a shared table gets one stage's gradient", STEPS, "DeepSpeed pipe engine: tied weights",
           "pipe.tied.training[1f1b]", replaced(dist, all_reduce=_float_sums_stay)),
    broken("a norm is that of one stage", STEPS, "DeepSpeed pipe engine: norms over stages", "pipe.clipping[inf-2]",
           replaced(dist, all_reduce=own_largest)),
    broken("a stage drops others when it computes again", STEPS, "DeepSpeed activation checkpointing in stages",
           "pipe.recomputed[gpipe]", _checkpointing),
    of_an_operator("a loss gradient is 2 % too large", STEPS, "defect class of kernels", "pipe.clipping[2-3]",
                   mse_loss_backward=scaled(1.02)),
)  # fmt: skip

"""Replay of a recorded run on the host: exactly, with honest rounding, or with the device's errors in chosen calls.

All of it is computed in float64 call by call, and rounded once to the dtype of each result. So the end of a replay is
what a perfect device of these dtypes would give, and the effect of one call's error on the end can be seen alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.compare import plain
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, mapped
from conformance.suites.calls.kernels import base_name, is_pointwise, named
from conformance.suites.operators.judge.judging import length_of_sizes

from .collectives import due
from .local import HOST, Before, evaluate_wide, outputs_on_host
from .memory import Constant, HostMemories, Place
from .recording import Step, Trace

#: Honest devices differ by a few roundings: a replay with roundings changes each inexact result by up to so many.
_ROUNDINGS = 2.0

#: Change of the results of one call of a rank: gets the exact values (float64, or integers), and returns those to go on
#: with.
Change = Callable[[int, Step, list[Any]], list[Any]]


def as_computed(rank: int, step: Step, values: list[Any]) -> list[Any]:
    """Return the exact values."""
    del rank, step
    return values


@dataclass
class Roundings:
    """Change each result that is not representable by up to two roundings, times a number, drawn with a seed."""

    seed: int
    times: float = 1.0
    _generators: dict[int, torch.Generator] = field(default_factory=dict)

    def __call__(self, rank: int, step: Step, values: list[Any]) -> list[Any]:
        """Return the changed values. Ranks that hold equal numbers go on with equal numbers after a collective."""
        if step.is_view or step.meeting is not None:
            return values
        generator = self._generators.setdefault(rank, torch.Generator().manual_seed(self.seed))
        terms, is_sum = _terms(step), base_name(step.function) in named("reduction")
        pairs = zip(values, step.results, strict=False)
        draw = functools.partial(_rounded, generator=generator, terms=terms, is_sum=is_sum, times=self.times)
        return [draw(value, place) for value, place in pairs]


def _rounded(
    value: Any, place: Place | Constant, *, generator: torch.Generator, terms: float, is_sum: bool, times: float
) -> Any:
    if not isinstance(value, torch.Tensor) or not isinstance(place, Place) or not _rounds(place.dtype):
        return value
    if value.dtype not in (torch.float64, torch.complex128):
        return value
    sizes = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    # A sum may be exact by chance, and its partial sums are not.
    inexact = (value.to(place.dtype).to(value.dtype) != value) | is_sum
    size = value.abs()
    if terms > 1 and value.numel():
        # Terms that cancel leave small sums, whose errors are those of the others.
        size = math.sqrt(terms) * torch.maximum(size, size.nan_to_num(0, 0, 0).mean())
    # Below the normal numbers, the distance of two numbers is the same everywhere.
    size = size.clamp(min=smallest_normal(place.dtype))
    changed = value + times * _ROUNDINGS * unit_roundoff(place.dtype) * sizes * size
    return torch.where(inexact & value.isfinite(), changed, value)


@dataclass(frozen=True)
class Errors:
    """Add the errors that the device has made in some calls, by the rank and the number of the call."""

    deltas: Mapping[tuple[int, int], list[torch.Tensor | None]]

    def __call__(self, rank: int, step: Step, values: list[Any]) -> list[Any]:
        """Return the values with the errors of this call."""
        deltas = self.deltas.get((rank, step.number))
        if deltas is None:
            return values
        padded = [*deltas, *([None] * (len(values) - len(deltas)))]
        return [_with(value, delta) for value, delta in zip(values, padded, strict=False)]


def _with(value: Any, delta: torch.Tensor | None) -> Any:
    """Return a value with an error; the same value without one."""
    if delta is None or not isinstance(value, torch.Tensor) or delta.shape != value.shape:
        return value
    if not (value.is_floating_point() or value.is_complex()):
        return delta
    return torch.where(delta.isfinite(), value + delta, delta)


def _terms(step: Step) -> float:
    """Return how many rounded terms an element of a result may have, from sizes alone; 1 for a pointwise kernel."""
    if is_pointwise(step.function):
        return 1.0
    read = [math.prod(place.size) for place in leaves((step.args, step.kwargs)) if isinstance(place, Place)]
    return length_of_sizes(read, [math.prod(place.size) for place in step.results if isinstance(place, Place)])


def smallest_normal(dtype: torch.dtype) -> float:
    """Return the smallest normal number of a dtype, or of the parts of its complex numbers."""
    return float(torch.finfo(dtype).smallest_normal)


def _rounds(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def replay(traces: Sequence[Trace], change: Change = as_computed) -> list[list[torch.Tensor]]:
    """Return the ends of the runs of all ranks, made again on the host: float64 tensors, or integers."""
    running = [Replay(trace, change, rank) for rank, trace in enumerate(traces)]
    waiting: dict[int, tuple[Step, list[torch.Tensor]]] = {}
    open_ = {rank: iter(one.steps()) for rank, one in enumerate(running)}
    while open_:
        for rank in [rank for rank in open_ if rank not in waiting]:
            if (met := _next_meeting(open_[rank])) is None:
                del open_[rank]
            else:
                waiting[rank] = met
        groups = [ready for rank in waiting if (ready := _ready(rank, waiting))]
        if not groups and open_:
            break  # the ranks did not meet in the run either
        for group in groups[:1]:
            inputs = [waiting[rank][1] for rank in group]
            for place, rank in enumerate(group):
                step, _ = waiting.pop(rank)
                running[rank].answer = due(step.meeting, place, inputs)
    return [one.ends() for one in running]


def _next_meeting(steps: Iterator[Any]) -> tuple[Step, list[torch.Tensor]] | None:
    """Make the calls of a rank until its next collective, and return that with what it reads; None at the end."""
    for step, made in steps:
        if made is None:
            continue
        if step.meeting is not None and isinstance(made, Reading):
            return step, made.tensors
    return None


def _ready(rank: int, waiting: Mapping[int, tuple[Step, Any]]) -> tuple[int, ...]:
    """Return the ranks of the group for which a rank waits, if all of them are there."""
    met = waiting[rank][0].meeting
    ranks = tuple(met.ranks)
    return ranks if all(other in waiting and waiting[other][0].meeting.group == met.group for other in ranks) else ()


@dataclass(frozen=True)
class Reading:
    """What a collective reads on one rank, before the ranks meet."""

    tensors: list[torch.Tensor]


class Replay:
    """Replay of the run of one rank, one call at a time."""

    def __init__(self, trace: Trace, change: Change = as_computed, rank: int = 0) -> None:
        self._trace, self._change, self._rank = trace, change, rank
        self._memories = HostMemories(trace.memories)
        self._numbers: dict[int, Any] = {}
        self.answer: list[torch.Tensor | None] = []

    def steps(self) -> Iterator[tuple[Step, Any]]:
        """Make the calls; yield each one with its results on the host.

        A collective comes twice: first with what it reads (Reading), and then, with ``answer`` set, with its results.
        """
        last = _last_uses(self._trace)
        for step in self._trace.steps:
            if step.meeting is not None:
                yield step, Reading([plain(self._memories.view(place)).clone() for place in step.read])
            yield step, self._made(step)
            for number in last.get(step.number, ()):
                self._memories.free(number)

    def ends(self) -> list[torch.Tensor]:
        """Return the ends of the run."""
        return [self._end(end) for _, end in self._trace.ends]

    def _end(self, end: Place | Constant | Step) -> torch.Tensor:
        if isinstance(end, Step):
            return torch.as_tensor(self._numbers.get(end.number, end.number_result))
        return plain(self._memories.view(end)).clone()

    @torch.no_grad()
    def _made(self, step: Step) -> list[torch.Tensor]:
        values: list[Any]
        targets = [self._memories.view(place) for place in step.results]
        if step.is_view:
            # A view computes nothing: where it lies is known. Only a broken one has errors.
            values = [_wide(target) for target in targets]
        elif step.meeting is not None:
            values = [
                value if value is None else value.reshape(target.shape)
                for value, target in zip(self.answer, targets, strict=False)
            ]
        elif step.constants is not None:
            values = list(step.constants)
        elif base_name(step.function) in named("uninitialised"):
            return targets
        else:
            values = self._computed(step)
        changed = self._change(self._rank, step, values)
        if step.is_view and all(one is other for one, other in zip(values, changed, strict=True)):
            return targets
        values = changed
        for target, value in zip(targets, values, strict=False):
            if isinstance(value, torch.Tensor) and value.shape == target.shape:
                _write(target, value)
        return targets

    def _computed(self, step: Step) -> list[Any]:
        before = Before(*mapped((step.args, step.kwargs), self._given))
        found = evaluate_wide(step, before)
        if not found:
            found = self._as_host(step, before)
        if not step.results:
            self._numbers[step.number] = _number(step, before)
        return found

    def _as_host(self, step: Step, before: Before) -> list[Any]:
        """Return the host's own results; it has no version in float64."""
        try:
            return outputs_on_host(step.function, *copied((before.args, before.kwargs), HOST))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return list(step.constants or [])

    def _given(self, leaf: Any) -> Any:
        if isinstance(leaf, Place | Constant):
            return self._memories.view(leaf)
        return HOST if isinstance(leaf, torch.device) else leaf


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value; of an expanded tensor, its first row is all there is."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return plain(tensor).to(torch.float64) if tensor.is_floating_point() else plain(tensor)


def _number(step: Step, before: Before) -> Any:
    """Return the number that a call such as ``item`` reads."""
    try:
        return step.function(*before.args, **before.kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return step.number_result


def _last_uses(trace: Trace) -> dict[int, list[int]]:
    """Return, by the number of a call, the memories that no later call and no end uses."""
    last = {place.memory: step.number for step in trace.steps for place in step.places()}
    for _, end in trace.ends:
        if isinstance(end, Place):
            last.pop(end.memory, None)
    found: dict[int, list[int]] = {}
    for memory, number in last.items():
        found.setdefault(number, []).append(memory)
    return found

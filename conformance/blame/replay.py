"""Replay of a recorded run on the host: exactly, with honest rounding, or with the device's errors in chosen calls.

All of it is computed in float64 call by call, and rounded once to the dtype of each result. So the end of a replay is
what a perfect device of these dtypes would give, and the effect of one call's error on the end can be seen alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.numerics.budgets import unit_roundoff
from conformance.numerics.compare import plain
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, mapped

from .local import HOST, Before, evaluate_wide, outputs_on_host
from .memory import Constant, HostMemories, Place
from .recording import Step, Trace, base_name, named

#: Honest devices differ by a few roundings: a replay with roundings changes each inexact result by up to so many.
_ROUNDINGS = 2.0

#: Change of the results of one call: gets the exact values (float64, or integers), and returns those to go on with.
Change = Callable[[Step, list[Any]], list[Any]]


def as_computed(step: Step, values: list[Any]) -> list[Any]:
    """Return the exact values."""
    del step
    return values


@dataclass
class Roundings:
    """Change each result that is not representable by up to two roundings, drawn with a seed."""

    seed: int
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, step: Step, values: list[Any]) -> list[Any]:
        """Return the changed values."""
        if step.is_view:
            return values
        terms, is_sum = _terms(step), base_name(step.function) in named("reduction")
        pairs = zip(values, step.results, strict=False)
        return [self._changed(value, place, terms, is_sum=is_sum) for value, place in pairs]

    def _changed(self, value: Any, place: Place | Constant, terms: float, *, is_sum: bool) -> Any:
        if not isinstance(value, torch.Tensor) or not isinstance(place, Place) or not _rounds(place.dtype):
            return value
        if value.dtype not in (torch.float64, torch.complex128):
            return value
        sizes = torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        # A sum may be exact by chance, and its partial sums are not.
        inexact = (value.to(place.dtype).to(value.dtype) != value) | is_sum
        size = value.abs()
        if terms > 1 and value.numel():
            # Terms that cancel leave small sums, whose errors are those of the others.
            size = math.sqrt(terms) * torch.maximum(size, size.nan_to_num(0, 0, 0).mean())
        changed = value + _ROUNDINGS * unit_roundoff(place.dtype) * sizes * size
        return torch.where(inexact & value.isfinite(), changed, value)


@dataclass(frozen=True)
class Errors:
    """Add the errors that the device has made in some calls, by the number of the call."""

    deltas: Mapping[int, list[torch.Tensor | None]]

    def __call__(self, step: Step, values: list[Any]) -> list[Any]:
        """Return the values with the errors of this call."""
        deltas = self.deltas.get(step.number)
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
    if torch.Tag.pointwise in step.function.tags or base_name(step.function).startswith("_foreach_"):
        return 1.0
    read = sorted((math.prod(p.size) for p in leaves((step.args, step.kwargs)) if isinstance(p, Place)), reverse=True)
    made = max((math.prod(p.size) for p in step.results if isinstance(p, Place)), default=1) or 1
    pair = math.sqrt(read[0] * read[1] / made) if len(read) > 1 else 1.0
    return max(1.0, read[0] / made, pair) if read else 1.0


def _rounds(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def replay(trace: Trace, change: Change = as_computed) -> list[torch.Tensor]:
    """Return the ends of a run that is made again on the host: float64 tensors, or integers."""
    for _ in (running := Replay(trace, change)):
        pass
    return running.ends


class Replay:
    """Replay of a run, one call at a time: iterate over it, then read ``ends``."""

    def __init__(self, trace: Trace, change: Change = as_computed) -> None:
        self._trace, self._change = trace, change
        self._memories = HostMemories(trace.memories)
        self._numbers: dict[int, Any] = {}
        self.ends: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[tuple[Step, list[torch.Tensor]]]:
        """Make the calls; yield each one with its results on the host."""
        last = _last_uses(self._trace)
        for step in self._trace.steps:
            yield step, self._made(step)
            for number in last.get(step.number, ()):
                self._memories.free(number)
        self.ends = [self._end(end) for _, end in self._trace.ends]

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
        elif step.constants is not None:
            values = list(step.constants)
        elif base_name(step.function) in named("uninitialised"):
            return targets
        else:
            values = self._computed(step)
        changed = self._change(step, values)
        if step.is_view and all(one is other for one, other in zip(values, changed, strict=True)):
            return targets
        values = changed
        for target, value in zip(targets, values, strict=False):
            if isinstance(value, torch.Tensor) and value.shape == target.shape:
                target.copy_(value)
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

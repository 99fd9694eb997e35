"""Watched run of a program on a device: each call is judged on its own inputs while it is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.numerics.layout import shares_memory
from conformance.numerics.trees import tensors

from .local import Before, Local, judge, unwritten
from .memory import fetched
from .program import Program
from .recording import Recorder, Step, Trace, outputs_of

#: Calls whose inputs and errors are kept although they are within their budgets: those with the largest errors.
_KEPT = 24


@dataclass
class Watched:
    """What a watched run has shown. ``seconds`` are those of the run without the judging."""

    trace: Trace
    judged: list[Local] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    ends: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def wrong(self) -> list[Local]:
        """Return the calls whose results are wrong."""
        return [local for local in self.judged if local.wrong]


def watch(program: Program, device: torch.device, *, seed: int = 0, judged: bool = True) -> Watched:
    """Run a program on a device and record its calls; without ``judged``, they are only recorded."""
    watcher = _Watcher(judged)
    recorder = Recorder(device.type, watcher.look)
    found = Watched(recorder.trace, watcher.found)
    begun = time.monotonic()
    try:
        with recorder:
            found.ends = program.run(device, seed)
    except Exception as error:  # noqa: BLE001  what the program raises is a result
        found.error = f"{type(error).__name__}: {error}"
    found.seconds = time.monotonic() - begun - watcher.seconds
    numbers = {id(step): step for step in recorder.trace.steps if step.number_result is not None}
    for name, value in found.ends:
        place = _place(recorder.trace, value, list(numbers.values()))
        if place is not None:
            recorder.trace.ends.append((name, place))
    return found


def _place(trace: Trace, value: Any, numbers: list[Step]) -> Any:
    """Return where an end comes from: a memory of the run, or the call that has read the number; None if neither."""
    if not isinstance(value, torch.Tensor):
        return next((step for step in reversed(numbers) if step.number_result == value), None)
    return trace.memories.place(value) if trace.memories.is_known(value) else None


class _Watcher:
    def __init__(self, judged: bool) -> None:
        self.found: list[Local] = []
        self.seconds = 0.0
        self._judged = judged

    def look(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Make a call, and judge it."""
        if not self._judged:
            return run()
        begun = time.monotonic()
        before = Before.of(args, kwargs)
        ready = time.monotonic()
        self.seconds += ready - begun
        try:
            result = run()
        except Exception as error:
            self.found.append(_refused(step, before, error))
            raise
        begun = time.monotonic()
        # Views keep their strides, which are what they are made for.
        copy = fetched if step.is_view else _copied
        outputs = outputs_of(step.function, args, kwargs, result)
        after = [copy(tensor) for tensor in outputs]
        if not after and isinstance(result, int | float | complex):
            after = [torch.as_tensor(result)]
        inputs = [] if step.is_view else [_copied(tensor) for tensor in unwritten(step.function, args, kwargs)]
        local = judge(step, before, after, inputs)
        if text := misplaced(step, args, kwargs, outputs):
            local.finding, local.ratio = local.finding or text, float("inf")
        if local.unjudged and step.constants is None:
            step.constants = after if local.needs_constants else None
        self._keep(local, before)
        self.found.append(local)
        self.seconds += time.monotonic() - begun
        return result

    def _keep(self, local: Local, before: Before) -> None:
        """Keep the inputs and the errors of the calls to talk about, and forget those of the others."""
        if local.wrong:
            local.call = before.call(local.step)
            return
        if not any(delta is not None for delta in local.deltas):
            local.deltas = []
            return
        local.call = before.call(local.step)
        near = sorted((one for one in self.found if not one.wrong and one.call), key=lambda one: one.ratio)
        if len(near) >= _KEPT:
            near[0].call, near[0].deltas = None, []


def misplaced(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]) -> str:
    """Return what is wrong with where the outputs lie: on another device, or a view with a memory of its own."""
    given = tensors((args, kwargs))
    devices = {tensor.device for tensor in given if tensor.dim() or len(given) == 1}
    asked = kwargs.get("device")
    due = torch.device(asked) if asked is not None else next(iter(devices)) if len(devices) == 1 else None
    for output in outputs:
        if due is not None and due.type == output.device.type and (due.index or 0) != (output.device.index or 0):
            return f"a result on {output.device} in place of {due}"
    if step.is_view and not any(shares_memory(output, tensor) is not False for output in outputs for tensor in given):
        return "a view that shares no memory with its input"
    return ""


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _refused(step: Step, before: Before, error: Exception) -> Local:
    """Return the judgement of a call that raised: wrong if the host makes it."""
    local = judge(step, before, [], [])
    found = Local(step, call=before.call(step))
    if local.unjudged.startswith("the host refuses"):
        found.unjudged = "both refuse it"
    elif not local.unjudged:
        found.finding, found.ratio = f"raised {type(error).__name__}: {str(error).splitlines()[0]}", float("inf")
    return found

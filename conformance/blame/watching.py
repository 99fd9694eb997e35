"""Watched run of a program on a device: each call is judged on its own inputs while it is made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from conformance.judging.observation import is_out_of_memory
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.layout import shares_memory
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors
from conformance.suites.calls.kernels import base_name, named, outputs_of

from .cells import Cells
from .collectives import Meeting, due, given, written
from .host_forms import WORKSPACES
from .local import HOST, TOO_LARGE, Before, Local, judge, judge_collective, outputs_on_host, unwritten
from .memory import fetched, is_misread, to_host
from .program import Program
from .recording import Recorder, Step, Trace

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


class Meet(Protocol):
    """Exchange between ranks."""

    def exchange(self, step: Step, tensors: list[torch.Tensor]) -> list[tuple[str, list[torch.Tensor]]]:
        """Return what each rank of the group reads, with the name of its collective, in the group's order."""


class _Alone:
    """Exchange of a group of one rank."""

    def exchange(self, step: Step, tensors: list[torch.Tensor]) -> list[tuple[str, list[torch.Tensor]]]:
        """Return what this rank reads."""
        return [(step.meeting.name, tensors)]


class _Ended(BaseException):
    """Ends a run behind a call. Programs do not catch it."""


def watch(
    program: Program,
    device: torch.device,
    *,
    seed: int = 0,
    judged: bool = True,
    meet: Meet | None = None,
    mended: bool = False,
    ends: Callable[[Local], bool] | None = None,
) -> Watched:
    """Run a program on a device and record its calls; without ``judged``, they are only recorded.

    In a ``mended`` run, each wrong result is replaced by the host's. So later calls get what a right device gives them.
    The run ends behind the first call of whose judgement ``ends`` is true.
    """
    watcher = _Watcher(meet or _Alone(), mended=mended, ends=ends)
    recorder = Recorder(device.type, watcher.look if judged else None)
    found = Watched(recorder.trace, watcher.found)
    begun = time.monotonic()
    try:
        with suppress(_Ended), recorder:
            found.ends = program.run(device, seed)
    except Exception as error:  # noqa: BLE001  what the program raises is a result
        found.error = f"{type(error).__name__}: {error}"
    found.seconds = time.monotonic() - begun - watcher.seconds
    if judged and (misread := _ends_misread(found, device)) is not None:
        found.judged.append(misread)
    numbers = [step for step in recorder.trace.steps if step.number_result is not None]
    for name, value in found.ends:
        place = _place(recorder.trace, value, numbers)
        if place is not None:
            recorder.trace.ends.append((name, place))
    return found


def _place(trace: Trace, value: Any, numbers: list[Step]) -> Any:
    """Return where an end comes from: a memory of the run, or the call that has read the number; None if neither."""
    if not isinstance(value, torch.Tensor):
        return next((step for step in reversed(numbers) if step.number_result == value), None)
    return trace.memories.place(value) if trace.memories.is_known(value) else None


class _Watcher:
    def __init__(self, meet: Meet, *, mended: bool = False, ends: Callable[[Local], bool] | None = None) -> None:
        self.found: list[Local] = []
        self._ends = ends
        self._cells = Cells()
        self._meet, self._mended = meet, mended
        self.seconds = 0.0

    def look(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Make a call, and judge it."""
        if step.meeting is not None:
            return self._met(step, args, kwargs, run)
        begun = time.monotonic()
        before = Before.of(args, kwargs)
        ready = time.monotonic()
        self.seconds += ready - begun
        try:
            result = run()
        except Exception as error:
            local = _refused(step, before, args, kwargs, error)
            self.found.append(local)
            if not (self._mended and local.wrong):
                raise
            return returned_by_host(step, before, args, kwargs)
        begun = time.monotonic()
        local, outputs = self._compared(step, before, args, kwargs, result)
        self._keep(local, before)
        self.found.append(local)
        if self._ends is not None and self._ends(local):
            raise _Ended
        if self._mended and local.wrong and not step.is_view:
            if local.misplaced and not outputs_of(step.function, args, kwargs, None):
                result = returned_by_host(step, before, args, kwargs)
            else:
                _mend(step, before, outputs)
        self.seconds += time.monotonic() - begun
        return result

    def _compared(
        self, step: Step, before: Before, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[Local, list[torch.Tensor]]:
        """Return the judgement of a call that has returned, and its outputs on the device."""
        # Views keep their strides, which are what they are made for.
        copy = fetched if step.is_view else _copied
        outputs = outputs_of(step.function, args, kwargs, result)
        if any(map(_reaches_beyond, outputs)):  # nobody can read it
            finding = "a result that reaches beyond its memory"
            return Local(step, ratio=float("inf"), finding=finding, misplaced=True), outputs
        after = [copy(tensor) for tensor in outputs]
        if not after and isinstance(result, int | float | complex):
            after = [torch.as_tensor(result)]
        inputs = [] if step.is_view else [_copied(tensor) for tensor in unwritten(step.function, args, kwargs)]
        local = self._cells.judge(step, before, after, inputs)
        if text := misplaced(step, args, kwargs, outputs):
            local.finding, local.ratio, local.misplaced = local.finding or text, float("inf"), True
        if local.wrong and base_name(step.function) in named("copies"):
            local.misread = _is_misread(step, before, [*tensors((args, kwargs)), *outputs])
        if local.needs_constants and step.constants is None:
            step.constants = after
        if step.function.namespace not in ("aten", "prims"):
            step.kept = after
        return local, outputs

    def _met(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Make a collective, wait until it is done, and judge it by what all ranks of the group read."""
        begun = time.monotonic()
        met: Meeting = step.meeting
        own = [_copied(tensor) for tensor in given(step.function, args, kwargs)]
        names, inputs = zip(*self._meet.exchange(step, own), strict=True)
        if len(set(names)) > 1:
            met_at = ", ".join(f"rank {rank}: {name}" for rank, name in zip(met.ranks, names, strict=True))
            raise RuntimeError(f"the ranks make different collectives at {step.name} (call {step.number}): {met_at}")
        ready = time.monotonic()
        result = run()
        self.seconds += ready - begun
        begun = time.monotonic()
        done(result)
        after = [_copied(tensor) for tensor in written(step.function, args, kwargs, result)]
        place = met.ranks.index(own_rank(met))
        local = judge_collective(step, after, due(met, place, list(inputs)), len(met.ranks))
        self.found.append(local)
        self.seconds += time.monotonic() - begun
        return result

    def _keep(self, local: Local, before: Before) -> None:
        """Keep the inputs and the errors of the calls to talk about, and forget those of the others."""
        if local.wrong:
            local.before = before
            return
        if not any(delta is not None for delta in local.deltas):
            local.deltas = []
            return
        local.before = before
        near = sorted((one for one in self.found if not one.wrong and one.before), key=lambda one: one.ratio)
        if len(near) >= _KEPT:
            near[0].before, near[0].deltas = None, []


def _mend(step: Step, before: Before, outputs: list[torch.Tensor]) -> None:
    """Write the host's results over those of a call; results of another shape stay."""
    own = WORKSPACES.get(base_name(step.function))  # a device may keep something else than the host
    for position, (output, right) in enumerate(zip(outputs, _right(step, before), strict=False)):
        if position != own and output.shape == right.shape and output.dtype == right.dtype:
            output.zero_().copy_(right)


def _right(step: Step, before: Before) -> list[torch.Tensor]:
    return outputs_on_host(step.function, *copied((before.args, before.kwargs), HOST))


def returned_by_host(step: Step, before: Before, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a call should have returned, on the device; it has raised, and the host makes it."""
    written = outputs_of(step.function, args, kwargs, None)
    found = _right(step, before)
    for target, right in zip(written, found, strict=False):
        target.copy_(right.to(target.device))
    device = next(tensor.device for tensor in tensors((args, kwargs)))
    made = written or [right.to(device) for right in found]
    return made[0] if len(step.function._schema.returns) == 1 else tuple(made)


def done(result: Any) -> None:
    """Wait until a collective is done: its result is a tensor, or has the work."""
    for leaf in leaves(result):
        if isinstance(leaf, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(leaf)
        elif hasattr(leaf, "wait"):
            leaf.wait()


def own_rank(met: Meeting) -> int:
    """Return this process's rank; the only one of a group of one."""
    return met.ranks[0] if len(met.ranks) == 1 else torch.distributed.get_rank()


def outputs_of_run(program: Program, device: torch.device, seed: int) -> list[tuple[Step, list[bytes]]]:
    """Run once; return a digest of the outputs of each call."""
    found: list[tuple[Step, list[bytes]]] = []

    def look(step: Step, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        result = run()
        if step.meeting is not None:
            done(result)
        made = outputs_of(step.function, args, kwargs, result)
        found.append((step, [_digest(plain(tensor)) for tensor in made]))
        return result

    with Recorder(device.type, look):
        program.run(device, seed)
    return found


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).digest()


def misplaced(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]) -> str:
    """Return what is wrong with where the outputs lie: on another device, or a view with a memory of its own."""
    given = tensors((args, kwargs))
    devices = {tensor.device for tensor in given if tensor.dim() or len(given) == 1}
    asked = kwargs.get("device")
    due = torch.device(asked) if asked is not None else next(iter(devices)) if len(devices) == 1 else None
    for output in outputs:
        # A device without an index is the current one, whichever it is. The host's tensors have none.
        indexed = due is not None and due.index is not None and output.device.index is not None
        if due is not None and indexed and due.type == output.device.type and due != output.device:
            return f"a result on {output.device} in place of {due}"
    if step.is_view and not any(shares_memory(output, tensor) is not False for output in outputs for tensor in given):
        return "a view that shares no memory with its input"
    return ""


def _reaches_beyond(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor lie outside of its memory."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes()


def _is_misread(step: Step, before: Before, beside: list[torch.Tensor]) -> bool:
    """Return whether the right result of a copy comes back changed from the device.

    Then nothing that is read from it can be trusted, and other calls may only look wrong.
    """
    device = next((tensor.device for tensor in beside if tensor.device.type != HOST.type), HOST)
    return any(is_misread(plain(right), device) for right in _right(step, before))


def _ends_misread(found: Watched, device: torch.device) -> Local | None:
    """Return a wrong copy if an end that is copied from the device as usual is not what its memory holds."""
    for _, value in found.ends:
        if not isinstance(value, torch.Tensor) or value.device.type != device.type or device.type == HOST.type:
            continue
        read, right = plain(value), _copied(value)
        if not same_bits(read, right):
            step = Step(len(found.trace.steps), torch.ops.aten._to_copy.default, (right,), {"device": HOST})
            local = judge(step, Before((right,), {"device": HOST}), [read], [])
            local.before, local.misread = Before((right,), {"device": HOST}), True
            return local if local.wrong else None
    return None


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return to_host(tensor.detach())


def _refused(step: Step, before: Before, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Local:
    """Return the judgement of a call that raised: wrong if the host makes it."""
    local = judge(step, before, [], [])
    found = Local(step, before=before)
    devices = {tensor.device for tensor in tensors((args, kwargs)) if tensor.dim()}
    if is_out_of_memory(error):
        found.unjudged = TOO_LARGE
    elif local.host_refuses:
        found.unjudged = "both refuse it"
    elif len({device.type for device in devices}) == 1 < len(devices):
        found.unjudged = "its inputs lie on several devices"
    elif not local.unjudged:
        found.finding, found.ratio = f"raised {type(error).__name__}: {str(error).splitlines()[0]}", float("inf")
    return found
